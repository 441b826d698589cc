"""Certificates of a tunnel: made by Python or by openssl in the node's shell, they keep the same promises."""

from __future__ import annotations

import ipaddress
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from bootbridge.bootstrap.machine import certificates
from bootbridge.bootstrap.machine.certificates import CertificateSet
from bootbridge.bootstrap.plan.plan import KEY_KINDS, IPAddress, KeyKind, Networking, Plan
from bootbridge.common.files import write_file
from bootbridge.trust.authority import Authority, Certificate
from tests.bootstrap.render.shell_node import Network, Node, needs_node
from tests.support.process_site import Site

V4, V6 = ipaddress.ip_address("10.0.0.5"), ipaddress.ip_address("fd00:1::5")
LOOPBACKS = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
DUAL = Networking(service=(ipaddress.ip_network("172.30.0.0/16"), ipaddress.ip_network("fd02::/112")))
pytestmark = needs_node


class Maker:
    """Makes certificates below a root directory; the same files wherever they come from."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self.root = root
        self.plan = plan

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def make(self, addresses: tuple[IPAddress, ...]) -> None:
        raise NotImplementedError

    def why_renew(self, addresses: tuple[IPAddress, ...]) -> str:
        raise NotImplementedError

    @property
    def certs(self) -> list[Path]:
        paths = self.plan.paths
        return [self.path(each) for each in (paths.ca_cert, paths.server_cert, paths.agent_cert)]

    @property
    def keys(self) -> list[Path]:
        return [self.path(each) for each in (self.plan.paths.server_key, self.plan.paths.agent_key)]


class ByPython(Maker):
    def make(self, addresses: tuple[IPAddress, ...]) -> None:
        for path, asset in certificates.files(self.plan, certificates.issue(self.plan, addresses)).items():
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            write_file(self.path(path), asset)

    def why_renew(self, addresses: tuple[IPAddress, ...]) -> str:
        bundle = certificates.load(self.root, self.plan)
        return certificates.renewal_reason(bundle, self.plan, addresses, datetime.now(UTC))


class ByShell(Maker):
    def __init__(self, root: Path, plan: Plan, network: Network) -> None:
        super().__init__(root, plan)
        self.node = Node(root, network, plan)

    def make(self, addresses: tuple[IPAddress, ...]) -> None:
        self._with(addresses, "mkdir -p $BOOTBRIDGE_TLS; bootbridge_make_certificates")

    def why_renew(self, addresses: tuple[IPAddress, ...]) -> str:
        return self._with(addresses, "bootbridge_why_renew")

    def _with(self, addresses: tuple[IPAddress, ...], function: str) -> str:
        # Straight into the functions, so that loopback addresses can be used to connect to.
        words = " ".join(map(str, addresses))
        done = self.node.bootkube(f"BOOTBRIDGE_ADDRESSES=({words})\n{function}")
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.remove()


MakerOf = Callable[[Plan], Maker]


@pytest.fixture(params=["python", "shell"])
def maker_of(request: pytest.FixtureRequest, tmp_path: Path, network: Network) -> MakerOf:
    def by(plan: Plan) -> Maker:
        if request.param == "python":
            return ByPython(tmp_path / "node", plan)
        return ByShell(tmp_path / "node", plan, network)

    return by


@pytest.fixture
def maker(maker_of: MakerOf) -> Maker:
    """Of a dual stack plan with the quicker kind of key."""
    return maker_of(Plan(key_kind="ecdsa-p256", networks=DUAL))


def verify(maker: Maker, leaf: str, *options: str) -> int:
    command = [
        "openssl",
        "verify",
        "-x509_strict",
        *options,
        "-CAfile",
        str(maker.certs[0]),
        str(maker.path(leaf)),
    ]
    return subprocess.run(command, capture_output=True, check=False).returncode


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


# --- what they are


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_openssl_verifies_each_for_its_purpose_and_its_addresses_only(
    maker_of: MakerOf, kind: KeyKind
) -> None:
    """Strictly: the server's serves under all addresses of the node, the agents' dials."""
    maker = maker_of(Plan(key_kind=kind, networks=DUAL))
    maker.make((V4, V6))
    server, agent = maker.plan.paths.server_cert, maker.plan.paths.agent_cert

    assert verify(maker, server, "-purpose", "sslserver") == 0
    assert verify(maker, agent, "-purpose", "sslclient") == 0
    assert verify(maker, server, "-purpose", "sslclient") != 0
    assert verify(maker, agent, "-purpose", "sslserver") != 0
    assert verify(maker, server, "-verify_ip", str(V4)) == 0
    assert verify(maker, server, "-verify_ip", str(V6)) == 0
    assert verify(maker, server, "-verify_ip", "10.0.0.6") != 0


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_extensions_keys_and_signatures_are_what_fips_and_the_originals_want(
    maker_of: MakerOf, kind: KeyKind
) -> None:
    """Key usages are critical, an RSA key may encipher keys, everything is signed with SHA-256."""
    maker = maker_of(Plan(key_kind=kind))
    maker.make((V4,))
    ca, server, agent = map(read, maker.certs)

    for certificate in (ca, server, agent):
        assert isinstance(certificate.signature_hash_algorithm, hashes.SHA256)
        key = certificate.public_key()
        if kind == "rsa-2048":
            assert isinstance(key, rsa.RSAPublicKey)
            assert key.key_size == 2048
        else:
            assert isinstance(key, ec.EllipticCurvePublicKey)
            assert key.curve.name == "secp256r1"
    assert [_usages(each) for each in (ca, server, agent)] == [
        {"digital_signature", "key_cert_sign", "crl_sign"},
        *[{"digital_signature"} | ({"key_encipherment"} if kind == "rsa-2048" else set())] * 2,
    ]
    extended = [
        each.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value for each in (server, agent)
    ]
    assert [[oid._name for oid in each] for each in extended] == [["serverAuth"], ["clientAuth"]]
    constraints = [
        each.extensions.get_extension_for_class(x509.BasicConstraints) for each in (ca, server, agent)
    ]
    assert [(each.critical, each.value.ca, each.value.path_length) for each in constraints] == [
        (True, True, 0),
        (True, False, None),
        (True, False, None),
    ]
    names = [each.subject.rfc4514_string() for each in (ca, server, agent)]
    assert names == ["CN=bootbridge-signer", "CN=konnectivity-server", "CN=konnectivity-agent"]


def _usages(certificate: x509.Certificate) -> set[str]:
    extension = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert extension.critical
    named = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
    )
    return {name for name in (*named, "key_cert_sign", "crl_sign") if getattr(extension.value, name)}


@pytest.mark.parametrize("hours", [1, 24])
def test_they_are_valid_for_as_long_as_the_plan_says(maker_of: MakerOf, hours: int) -> None:
    """To the hour, and from five minutes ago on: the clocks of two machines differ."""
    maker = maker_of(Plan(key_kind="ecdsa-p256", validity=timedelta(hours=hours)))
    before = datetime.now(UTC) - timedelta(seconds=1)
    maker.make((V4,))
    after = datetime.now(UTC) + timedelta(seconds=1)

    for certificate in map(read, maker.certs):
        assert (
            before + timedelta(hours=hours)
            <= certificate.not_valid_after_utc
            <= after + timedelta(hours=hours)
        )
        five = timedelta(minutes=5)
        assert before - five <= certificate.not_valid_before_utc <= after - five


def test_keys_are_their_owners_and_the_authoritys_key_is_nowhere(maker: Maker) -> None:
    """Only two keys lie on the node, both 0600, and neither belongs to the authority."""
    maker.make((V4,))
    tls = maker.path(maker.plan.paths.tls)
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in tls.iterdir()}
    holding_keys = [
        path
        for top in ("opt", "etc", "run", "tmp", "var")
        for path in (maker.root / top).rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    ]

    certs, keys = dict.fromkeys(("ca.crt", "server.crt", "agent.crt"), "0o644"), ("server.key", "agent.key")
    assert modes == {**certs, **dict.fromkeys(keys, "0o600")}
    assert sorted(holding_keys) == sorted(maker.keys)
    assert not list((maker.root / "run").glob("*"))
    public = [read(path).public_key() for path in maker.certs]
    assert public[0] not in public[1:]


# --- when they are made anew


def test_fresh_ones_are_kept(maker: Maker) -> None:
    """Nothing speaks against what was just made, in whatever order the addresses come."""
    maker.make((V4, V6))

    assert maker.why_renew((V4, V6)) == ""
    assert maker.why_renew((V6, V4)) == ""


def test_other_addresses_make_all_anew(maker: Maker) -> None:
    """Another one, one more, or one less."""
    maker.make((V4,))
    other = ipaddress.ip_address("10.0.0.6")

    assert [("addresses have changed" in maker.why_renew(each)) for each in ((other,), (V4, V6))] == [
        True
    ] * 2
    maker.make((V4, V6))
    assert "addresses have changed" in maker.why_renew((V6,))


def test_a_missing_or_unreadable_file_makes_all_anew(maker: Maker) -> None:
    """Each of the five, gone, empty or broken."""
    assert maker.why_renew((V4,))
    maker.make((V4,))
    whole = {path: path.read_bytes() for path in (*maker.certs, *maker.keys)}
    for path, content in whole.items():
        path.unlink()
        assert maker.why_renew((V4,)), f"{path.name} is missing"
        path.write_bytes(b"-----BEGIN GARBAGE-----\n")
        assert maker.why_renew((V4,)), f"{path.name} is broken"
        path.write_bytes(content)
    assert maker.why_renew((V4,)) == ""


def test_another_key_or_authority_makes_all_anew(maker: Maker) -> None:
    """Files of two runs do not belong together, even if each can be read."""
    maker.make((V4,))
    first = {path: path.read_bytes() for path in (*maker.certs, *maker.keys)}
    maker.make((V4,))
    ca, _, _ = maker.certs
    server_key, _ = maker.keys

    server_key.write_bytes(first[server_key])
    assert "do not belong together" in maker.why_renew((V4,))
    maker.make((V4,))
    ca.write_bytes(first[ca])
    assert "has not signed them" in maker.why_renew((V4,))


def test_another_kind_of_key_makes_all_anew(maker_of: MakerOf, maker: Maker) -> None:
    """As when a plan was changed and injected again."""
    maker.make((V4,))
    maker.plan = replace(maker.plan, key_kind="rsa-2048")
    if isinstance(maker, ByShell):
        maker.node.lay(maker.plan)

    assert "are no rsa-2048" in maker.why_renew((V4,))


@pytest.mark.parametrize(
    ("left", "renewed"),
    [(timedelta(hours=-1), True), (timedelta(minutes=59), True), (timedelta(minutes=61), False)],
    ids=["expired", "in the last quarter", "before the last quarter"],
)
def test_the_last_quarter_of_the_validity_makes_all_anew(
    maker_of: MakerOf, left: timedelta, renewed: bool
) -> None:
    """Of four hours, certificates with less than one hour left are not handed out any more."""
    maker = maker_of(Plan(key_kind="ecdsa-p256", validity=timedelta(hours=4)))
    bundle = _valid_for(left)
    for path, asset in certificates.files(maker.plan, bundle).items():
        maker.path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(maker.path(path), asset)

    why = maker.why_renew((V4,))

    assert ("expire" in why) == renewed
    assert bool(why) == renewed


def _valid_for(left: timedelta) -> CertificateSet:
    authority = Authority.create("bootbridge-signer", validity=left)
    server = authority.issue_server([str(V4)], validity=left)
    return CertificateSet(
        authority.cert_pem, server, authority.issue_client("konnectivity-agent", validity=left)
    )


def test_a_bundle_does_not_show_its_keys() -> None:
    """Neither in a traceback nor in a log line."""
    bundle = _valid_for(timedelta(hours=1))

    assert "PRIVATE" not in repr(bundle)
    assert isinstance(bundle.agent, Certificate)


# --- what they are for


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_our_server_and_agent_connect_with_them(maker_of: MakerOf, site: Site, kind: KeyKind) -> None:
    """The server serves and agents dial over IPv4 and IPv6 alike, each knowing the other by the authority."""
    maker = maker_of(Plan(key_kind=kind))
    maker.make(LOOPBACKS)
    ca, server_cert, agent_cert = maker.certs
    server_key, agent_key = maker.keys

    served = {"cluster-ca-cert": ca, "cluster-cert": server_cert, "cluster-key": server_key}
    server = site.server(mode="grpc", flags=served)
    dialling = {"ca-cert": ca, "agent-cert": agent_cert, "agent-key": agent_key}
    for count, host in enumerate(LOOPBACKS, 1):
        site.agent(server, flags={**dialling, "proxy-server-host": host, "agent-id": f"agent-{count}"})
        server.wait_for_agents(count)
