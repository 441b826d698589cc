"""Checks the tunnel's certificates, issued by Python and by openssl in the node's shell."""

from __future__ import annotations

import ipaddress
import stat
import subprocess
from collections.abc import Callable
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
from tests.support.tunnel_programs import Programs

V4, V6 = ipaddress.ip_address("10.0.0.5"), ipaddress.ip_address("fd00:1::5")
LOOPBACKS = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
DUAL = Networking(service=(ipaddress.ip_network("172.30.0.0/16"), ipaddress.ip_network("fd02::/112")))
pytestmark = needs_node


class Issuer:
    """Issues certificates below a root directory."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self.root = root
        self.plan = plan

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def issue(self, addresses: tuple[IPAddress, ...]) -> None:
        raise NotImplementedError

    def renewal_reason(self, addresses: tuple[IPAddress, ...]) -> str:
        raise NotImplementedError

    @property
    def certs(self) -> list[Path]:
        paths = self.plan.paths
        return [self.path(each) for each in (paths.ca_cert, paths.server_cert, paths.agent_cert)]

    @property
    def keys(self) -> list[Path]:
        return [self.path(each) for each in (self.plan.paths.server_key, self.plan.paths.agent_key)]


class PythonIssuer(Issuer):
    def issue(self, addresses: tuple[IPAddress, ...]) -> None:
        for path, asset in certificates.files(self.plan, certificates.issue(self.plan, addresses)).items():
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            write_file(self.path(path), asset)

    def renewal_reason(self, addresses: tuple[IPAddress, ...]) -> str:
        bundle = certificates.load(self.root, self.plan)
        return certificates.renewal_reason(bundle, self.plan, addresses, datetime.now(UTC))


class ShellIssuer(Issuer):
    def __init__(self, root: Path, plan: Plan, network: Network) -> None:
        super().__init__(root, plan)
        self.node = Node(root, network, plan)

    def issue(self, addresses: tuple[IPAddress, ...]) -> None:
        self._with(addresses, "mkdir -p $BOOTBRIDGE_TLS; bootbridge_make_certificates")

    def renewal_reason(self, addresses: tuple[IPAddress, ...]) -> str:
        return self._with(addresses, "bootbridge_renewal_reason")

    def _with(self, addresses: tuple[IPAddress, ...], function: str) -> str:
        # Skips address detection, so that the certificates can contain loopback addresses.
        words = " ".join(map(str, addresses))
        done = self.node.bootkube(f"BOOTBRIDGE_ADDRESSES=({words})\n{function}")
        assert done.returncode == 0, done.stderr
        return done.stdout


IssuerFor = Callable[[Plan], Issuer]


@pytest.fixture(params=["python", "shell"])
def issuer_for(request: pytest.FixtureRequest, tmp_path: Path, network: Network) -> IssuerFor:
    def by(plan: Plan) -> Issuer:
        if request.param == "python":
            return PythonIssuer(tmp_path / "node", plan)
        return ShellIssuer(tmp_path / "node", plan, network)

    return by


@pytest.fixture
def issuer(issuer_for: IssuerFor) -> Issuer:
    """For a dual-stack plan with the faster key type."""
    return issuer_for(Plan(key_kind="ecdsa-p256", networks=DUAL))


def verify(issuer: Issuer, leaf: str, *options: str) -> int:
    files = ["-CAfile", str(issuer.certs[0]), str(issuer.path(leaf))]
    command = ["openssl", "verify", "-x509_strict", *options, *files]
    return subprocess.run(command, capture_output=True, check=False).returncode


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


# --- content


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_openssl_verifies_purpose_and_addresses(issuer_for: IssuerFor, kind: KeyKind) -> None:
    """With -x509_strict: the server's for all addresses of the node, the agents' for clients only."""
    issuer = issuer_for(Plan(key_kind=kind, networks=DUAL))
    issuer.issue((V4, V6))
    server, agent = issuer.plan.paths.server_cert, issuer.plan.paths.agent_cert

    assert verify(issuer, server, "-purpose", "sslserver") == 0
    assert verify(issuer, agent, "-purpose", "sslclient") == 0
    assert verify(issuer, server, "-purpose", "sslclient") != 0
    assert verify(issuer, agent, "-purpose", "sslserver") != 0
    assert verify(issuer, server, "-verify_ip", str(V4)) == 0
    assert verify(issuer, server, "-verify_ip", str(V6)) == 0
    assert verify(issuer, server, "-verify_ip", "10.0.0.6") != 0


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_extensions_keys_and_signatures(issuer_for: IssuerFor, kind: KeyKind) -> None:
    """As FIPS and the Go programs require: critical key usages, SHA-256, keyEncipherment for RSA."""
    issuer = issuer_for(Plan(key_kind=kind))
    issuer.issue((V4,))
    ca, server, agent = map(read, issuer.certs)

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
    named = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
    others = ("key_agreement", "key_cert_sign", "crl_sign")
    return {name for name in (*named, *others) if getattr(extension.value, name)}


@pytest.mark.parametrize("hours", [1, 24])
def test_validity_comes_from_the_plan(issuer_for: IssuerFor, hours: int) -> None:
    """Starts five minutes ago, because the clocks of two machines differ."""
    issuer = issuer_for(Plan(key_kind="ecdsa-p256", validity=timedelta(hours=hours)))
    before = datetime.now(UTC) - timedelta(seconds=1)
    issuer.issue((V4,))
    after = datetime.now(UTC) + timedelta(seconds=1)

    for certificate in map(read, issuer.certs):
        assert (
            before + timedelta(hours=hours)
            <= certificate.not_valid_after_utc
            <= after + timedelta(hours=hours)
        )
        five = timedelta(minutes=5)
        assert before - five <= certificate.not_valid_before_utc <= after - five


def test_only_two_keys_are_on_the_node(issuer: Issuer) -> None:
    """Both with mode 0600. Neither is the CA key."""
    issuer.issue((V4,))
    tls = issuer.path(issuer.plan.paths.tls)
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in tls.iterdir()}
    holding_keys = [
        path
        for top in ("opt", "etc", "run", "tmp", "var")
        for path in (issuer.root / top).rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    ]

    certs, keys = dict.fromkeys(("ca.crt", "server.crt", "agent.crt"), "0o644"), ("server.key", "agent.key")
    assert modes == {**certs, **dict.fromkeys(keys, "0o600")}
    assert sorted(holding_keys) == sorted(issuer.keys)
    assert not list((issuer.root / "run").glob("*"))
    public = [read(path).public_key() for path in issuer.certs]
    assert public[0] not in public[1:]


# --- renewal


def test_new_certificates_are_not_renewed(issuer: Issuer) -> None:
    """In any order of the addresses."""
    issuer.issue((V4, V6))

    assert issuer.renewal_reason((V4, V6)) == ""
    assert issuer.renewal_reason((V6, V4)) == ""


def test_changed_addresses_renew(issuer: Issuer) -> None:
    """A different address, an additional one, or a missing one."""
    issuer.issue((V4,))
    other = ipaddress.ip_address("10.0.0.6")

    for addresses in ((other,), (V4, V6)):
        assert "addresses changed" in issuer.renewal_reason(addresses)
    issuer.issue((V4, V6))
    assert "addresses changed" in issuer.renewal_reason((V6,))


def test_a_missing_or_invalid_file_renews(issuer: Issuer) -> None:
    """Each of the five files."""
    assert issuer.renewal_reason((V4,))
    issuer.issue((V4,))
    whole = {path: path.read_bytes() for path in (*issuer.certs, *issuer.keys)}
    for path, content in whole.items():
        path.unlink()
        assert issuer.renewal_reason((V4,)), f"{path.name} is missing"
        path.write_bytes(b"-----BEGIN GARBAGE-----\n")
        assert issuer.renewal_reason((V4,)), f"{path.name} is invalid"
        path.write_bytes(content)
    assert issuer.renewal_reason((V4,)) == ""


def test_files_of_two_runs_renew(issuer: Issuer) -> None:
    """Each file is valid, but key or CA are of another run."""
    issuer.issue((V4,))
    first = {path: path.read_bytes() for path in (*issuer.certs, *issuer.keys)}
    issuer.issue((V4,))
    ca, _, _ = issuer.certs
    server_key, _ = issuer.keys

    server_key.write_bytes(first[server_key])
    assert "do not match" in issuer.renewal_reason((V4,))
    issuer.issue((V4,))
    ca.write_bytes(first[ca])
    assert "not signed by this CA" in issuer.renewal_reason((V4,))


def test_another_key_type_renews(issuer_for: IssuerFor, issuer: Issuer) -> None:
    """As after injecting a changed plan."""
    issuer.issue((V4,))
    issuer.plan = replace(issuer.plan, key_kind="rsa-2048")
    if isinstance(issuer, ShellIssuer):
        issuer.node.install(issuer.plan)

    assert "key type is not rsa-2048" in issuer.renewal_reason((V4,))


@pytest.mark.parametrize(
    ("left", "renewed"),
    [(timedelta(hours=-1), True), (timedelta(minutes=59), True), (timedelta(minutes=61), False)],
    ids=["expired", "in the last quarter", "before the last quarter"],
)
def test_the_last_quarter_of_the_validity_renews(
    issuer_for: IssuerFor, left: timedelta, renewed: bool
) -> None:
    """Of four hours, certificates with less than one hour left are renewed."""
    issuer = issuer_for(Plan(key_kind="ecdsa-p256", validity=timedelta(hours=4)))
    bundle = _valid_for(left)
    for path, asset in certificates.files(issuer.plan, bundle).items():
        issuer.path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(issuer.path(path), asset)

    reason = issuer.renewal_reason((V4,))

    assert ("expire" in reason) == renewed
    assert bool(reason) == renewed


def _valid_for(left: timedelta) -> CertificateSet:
    authority = Authority.create("bootbridge-signer", validity=left)
    server = authority.issue_server([str(V4)], validity=left)
    return CertificateSet(
        authority.cert_pem, server, authority.issue_client("konnectivity-agent", validity=left)
    )


def test_repr_omits_the_keys() -> None:
    """So that no traceback or log line contains them."""
    bundle = _valid_for(timedelta(hours=1))

    assert "PRIVATE" not in repr(bundle)
    assert isinstance(bundle.agent, Certificate)


# --- use


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_our_server_and_agent_connect(issuer_for: IssuerFor, programs: Programs, kind: KeyKind) -> None:
    """Over IPv4 and IPv6, with mutual TLS."""
    issuer = issuer_for(Plan(key_kind=kind))
    issuer.issue(LOOPBACKS)
    ca, server_cert, agent_cert = issuer.certs
    server_key, agent_key = issuer.keys

    served = {"cluster-ca-cert": ca, "cluster-cert": server_cert, "cluster-key": server_key}
    server = programs.server(mode="grpc", flags=served)
    dialling = {"ca-cert": ca, "agent-cert": agent_cert, "agent-key": agent_key}
    for count, host in enumerate(LOOPBACKS, 1):
        programs.agent(server, flags={**dialling, "proxy-server-host": host, "agent-id": f"agent-{count}"})
        server.wait_for_agents(count)
