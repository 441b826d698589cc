"""TLS contexts from files: authentication, negotiation, and the flag that an error names."""

from __future__ import annotations

import base64
import logging
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bootbridge.errors import OperatorError
from bootbridge.runtime.tls_files import FlagFile, TlsFiles, TlsPolicy, certificates
from bootbridge.trust.authority import BACKDATED, Authority, KeyKind

# Old versions are tested because `--tls-min-version` allows them.
pytestmark = pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")

GO_SUITES = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    *(
        f"TLS_ECDHE_{kind}_WITH_{cipher}"
        for kind in ("ECDSA", "RSA")
        for cipher in (
            "AES_128_CBC_SHA",
            "AES_256_CBC_SHA",
            "AES_128_GCM_SHA256",
            "AES_256_GCM_SHA384",
            "CHACHA20_POLY1305_SHA256",
        )
    ),
]


@dataclass(frozen=True)
class Files:
    """An authority with a server's and a client's files on disk."""

    directory: Path
    authority: Authority
    ca: str
    cert: str
    key: str
    client_cert: str
    client_key: str

    def listener(self, policy: TlsPolicy | None = None) -> TlsFiles:
        return TlsFiles.agent_listener(self.cert, self.key, self.ca, policy=policy)

    def client(self) -> TlsFiles:
        return TlsFiles.agent_client(self.ca, self.client_cert, self.client_key)


def make_files(directory: Path, key: KeyKind = "ecdsa-p256") -> Files:
    authority = Authority.create("root", key=key)
    server = authority.issue_server(["localhost", "127.0.0.1", "::1"]).write(directory, "server")
    client = authority.issue_client("agent").write(directory, "client")
    return Files(directory, authority, *map(str, (authority.write(directory), *server, *client)))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_files(tmp_path)


@dataclass(frozen=True)
class Handshake:
    client: ssl.SSLObject
    server: ssl.SSLObject


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "localhost") -> Handshake:
    """Runs both ends of a handshake in memory; raises the error of either end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return Handshake(*ends)


def test_an_agent_with_a_certificate_of_the_ca_is_let_in(files: Files) -> None:
    """MTLS agrees on TLS 1.3 and h2, without compression or session tickets."""
    ends = handshake(files.client().context(), files.listener().context())

    assert ends.server.version() == "TLSv1.3"
    assert (ends.client.selected_alpn_protocol(), ends.server.selected_alpn_protocol()) == ("h2", "h2")
    assert ends.server.compression() is None
    assert ends.server.getpeercert() is not None
    with pytest.raises(ssl.SSLWantReadError):
        ends.client.read(1)
    assert not ends.client.session.has_ticket


def test_an_agent_without_a_certificate_is_refused(files: Files) -> None:
    """With a CA, a certificate is a must."""
    anonymous = TlsFiles.agent_client(files.ca)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(anonymous.context(), files.listener().context())


def test_an_agent_with_a_certificate_of_another_ca_is_refused(files: Files, tmp_path: Path) -> None:
    """A certificate that anybody could have made is worth nothing."""
    cert, key = Authority.create("root").issue_client("agent").write(tmp_path, "other")
    untrusted = TlsFiles.agent_client(files.ca, str(cert), str(key))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(untrusted.context(), files.listener().context())


def test_an_expired_agent_certificate_is_refused(files: Files, tmp_path: Path) -> None:
    """The end of validity is honoured."""
    expired = files.authority.issue_client("agent", validity=timedelta(hours=-1)).write(tmp_path, "old")
    agent = TlsFiles.agent_client(files.ca, *map(str, expired))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(agent.context(), files.listener().context())


def test_without_a_ca_the_agent_listener_asks_for_no_certificate(files: Files) -> None:
    """Token authentication brings no client certificate; the listener still speaks TLS only."""
    listener = TlsFiles.agent_listener(files.cert, files.key)
    ends = handshake(TlsFiles.agent_client(files.ca).context(), listener.context())
    assert ends.server.getpeercert() is None


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_the_server_is_verified_by_name_or_address(files: Files, name: str) -> None:
    """Names are compared with DNS names, address literals with IP addresses."""
    assert handshake(files.client().context(), files.listener().context(), name).client.version()


@pytest.mark.parametrize("name", ["other.example", "127.0.0.2", "::2"])
def test_a_server_under_another_name_or_address_is_refused(files: Files, name: str) -> None:
    """A certificate of the right CA for the wrong name is refused."""
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(files.client().context(), files.listener().context(), name)


def test_without_a_ca_the_agent_trusts_the_system_roots_only(files: Files) -> None:
    """Without `--ca-cert` the system's roots apply, not blind trust."""
    context = TlsFiles.agent_client().context()

    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context, TlsFiles.agent_listener(files.cert, files.key).context())


def test_system_roots_are_really_used(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CA among the system's roots is enough; without any roots the error names the flag."""
    listener = TlsFiles.agent_listener(files.cert, files.key)
    monkeypatch.setenv("SSL_CERT_FILE", files.ca)
    assert handshake(TlsFiles.agent_client().context(), listener.context()).client.version()

    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    with pytest.raises(OperatorError, match=r"--ca-cert: .*no system root"):
        TlsFiles.agent_client()


def test_the_agent_offers_its_alpn_protocols_and_then_h2(files: Files) -> None:
    """`--alpn-proto` values come first; a server that knows only h2 still gets it."""
    agent = TlsFiles.agent_client(files.ca, files.client_cert, files.client_key, alpn_protos=["bb", "h2"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files.cert, files.key)
    server.set_alpn_protocols(["bb"])

    assert handshake(agent.context(), server).client.selected_alpn_protocol() == "bb"
    assert handshake(agent.context(), files.listener().context()).client.selected_alpn_protocol() == "h2"


@pytest.mark.parametrize("alpn", ["h2", "http/1.1"])
def test_the_frontend_listener_wants_a_certificate_and_agrees_on_its_protocol(
    files: Files, alpn: str
) -> None:
    """Frontends over TCP always show a certificate; the mode decides the protocol."""
    listener = TlsFiles.frontend_listener(files.cert, files.key, files.ca, alpn=alpn)
    client = files.client().context()
    client.set_alpn_protocols(["h2", "http/1.1"])

    assert handshake(client, listener.context()).server.selected_alpn_protocol() == alpn
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(TlsFiles.agent_client(files.ca).context(), listener.context())


def limited_client(files: Files, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = files.client().context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = version
    return context


@pytest.mark.parametrize(
    ("flag", "least"),
    [
        ("", "1.2"),
        ("VersionTLS10", "1"),
        ("VersionTLS11", "1.1"),
        ("VersionTLS12", "1.2"),
        ("VersionTLS13", "1.3"),
    ],
)
def test_the_least_version_is_honoured(files: Files, flag: str, least: str) -> None:
    """Clients that know only older versions are refused, all others are served; the default is TLS 1.2."""
    listener = files.listener(TlsPolicy.from_flags(flag)).context()
    versions = {
        "1": ssl.TLSVersion.TLSv1,
        "1.1": ssl.TLSVersion.TLSv1_1,
        "1.2": ssl.TLSVersion.TLSv1_2,
        "1.3": ssl.TLSVersion.TLSv1_3,
    }
    for name, version in versions.items():
        client = limited_client(files, version)
        if version < versions[least]:
            with pytest.raises(ssl.SSLError):
                handshake(client, listener)
        else:
            assert handshake(client, listener).server.version() == f"TLSv{name}"


def test_the_agent_side_never_goes_below_tls_1_2(files: Files) -> None:
    """The agent rejects a server with an old TLS version."""
    server = files.listener(TlsPolicy.from_flags("VersionTLS10")).context()
    server.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        handshake(files.client().context(), server)


def test_an_unknown_version_is_refused_in_upstreams_words() -> None:
    """The message lists what is supported."""
    expected = (
        'unsupported TLS version "VersionTLS09", supported values are: '
        "VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13"
    )
    with pytest.raises(OperatorError) as caught:
        TlsPolicy.from_flags("VersionTLS09")
    assert caught.value.args == (expected,)
    assert caught.value.subject == "--tls-min-version"


@pytest.mark.parametrize(
    "name", ["TLS_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA", "tls_aes_128_gcm_sha256", ""]
)
def test_an_unknown_or_insecure_cipher_suite_is_refused_in_upstreams_words(name: str) -> None:
    """Only Go's secure suites by Go's names are taken."""
    with pytest.raises(OperatorError) as caught:
        TlsPolicy.from_flags("", ["TLS_AES_128_GCM_SHA256", name])
    assert caught.value.args == (
        f"cipher suite {name} not supported, doesn't exist or considered as insecure",
    )
    assert caught.value.subject == "--cipher-suites"


@pytest.mark.parametrize("kind", ["ECDSA", "RSA"])
def test_every_suite_of_gos_list_can_be_chosen_alone(tmp_path: Path, kind: str) -> None:
    """A TLS 1.2 client gets exactly the suite that the flag allows."""
    files = make_files(tmp_path, "rsa-2048" if kind == "RSA" else "ecdsa-p256")
    client = limited_client(files, ssl.TLSVersion.TLSv1_2)
    names = [name for name in GO_SUITES if f"_{kind}_" in name]

    assert len(names) == 5
    agreed = [handshake(client, files.listener(TlsPolicy.from_flags("", [n])).context()) for n in names]
    # OpenSSL's name of a suite holds the parts of Go's, in its own order and spelling.
    chosen = [ends.server.cipher()[0] for ends in agreed]  # type: ignore[index]
    assert chosen == [
        f"ECDHE-{kind}-AES128-SHA",
        f"ECDHE-{kind}-AES256-SHA",
        f"ECDHE-{kind}-AES128-GCM-SHA256",
        f"ECDHE-{kind}-AES256-GCM-SHA384",
        f"ECDHE-{kind}-CHACHA20-POLY1305",
    ]


def test_tls_1_3_suites_are_accepted_and_leave_only_tls_1_3(files: Files) -> None:
    """As in Go, they choose nothing; and if nothing else is allowed, TLS 1.2 has nothing to agree on."""
    listener = files.listener(TlsPolicy.from_flags("", ["TLS_AES_128_GCM_SHA256"])).context()

    assert handshake(files.client().context(), listener).server.version() == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        handshake(limited_client(files, ssl.TLSVersion.TLSv1_2), listener)


def ca_file(tmp_path: Path, content: bytes) -> FlagFile:
    path = tmp_path / "bundle.pem"
    path.write_bytes(content)
    return FlagFile("--cluster-ca-cert", str(path))


def test_a_ca_bundle_gives_all_its_certificates_and_nothing_else(files: Files, tmp_path: Path) -> None:
    """Comments, keys, blocks with headers, bad base64 and truncated blocks are passed over."""
    first, second = files.authority.cert_pem, Authority.create("second").cert_pem
    with_headers = first.replace(b"CERTIFICATE-----\n", b"CERTIFICATE-----\nProc-Type: 4,ENCRYPTED\n\n", 1)
    bad_base64 = b"-----BEGIN CERTIFICATE-----\nAAAAA\n-----END CERTIFICATE-----\n"
    truncated = first[: len(first) // 2]
    key = files.authority.key_pem
    parts = [b"# roots\r\n", first, key, with_headers, bad_base64, second.replace(b"\n", b"\r\n"), truncated]

    found = certificates(ca_file(tmp_path, b"\n".join(parts)))
    assert found == [ssl.PEM_cert_to_DER_cert(pem.decode()) for pem in (first, second)]


@pytest.mark.parametrize("content", [b"", b"no certificate here", Authority.create("x").key_pem])
def test_a_ca_file_without_certificates_is_an_error(tmp_path: Path, content: bytes) -> None:
    """An empty trust store would reject every peer without a reason."""
    file = ca_file(tmp_path, content)
    with pytest.raises(OperatorError, match=r"--cluster-ca-cert: .*bundle\.pem: no certificate found"):
        certificates(file)


@pytest.mark.parametrize("der", [b"garbage", b"\x30\x03\x02\x01\x01", "cut"])
def test_an_invalid_certificate_block_is_an_error(files: Files, tmp_path: Path, der: bytes | str) -> None:
    """A good certificate before it does not hide the bad one, and the file is named."""
    whole = ssl.PEM_cert_to_DER_cert(files.authority.cert_pem.decode())
    bad = base64.encodebytes(whole[:-20] if isinstance(der, str) else der)
    block = b"-----BEGIN CERTIFICATE-----\n" + bad + b"-----END CERTIFICATE-----\n"
    file = ca_file(tmp_path, files.authority.cert_pem + block)
    with pytest.raises(OperatorError, match=r"--cluster-ca-cert: .*bundle\.pem: invalid CERTIFICATE block"):
        certificates(file)


def test_any_certificate_in_the_ca_file_is_an_anchor_as_in_go(files: Files) -> None:
    """A certificate in the CA file is trusted itself, without its root."""
    own = TlsFiles.agent_client(files.cert, files.client_cert, files.client_key)
    assert handshake(own.context(), files.listener().context()).client.version()


def test_a_common_name_is_not_a_server_name(files: Files, tmp_path: Path) -> None:
    """As in Go, only alternative names count."""
    cert, key = files.authority.issue_server(["192.0.2.7"], common_name="localhost").write(tmp_path, "cn")
    listener = TlsFiles.agent_listener(str(cert), str(key), files.ca)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(files.client().context(), listener.context())


def test_missing_and_unreadable_files_are_blamed_on_their_flag(files: Files, tmp_path: Path) -> None:
    """The message names flag and file and says what is wrong."""
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(OperatorError, match=r"--cluster-cert: cannot read .*missing\.pem: No such file"):
        TlsFiles.agent_listener(missing, files.key)
    with pytest.raises(OperatorError, match=r"--cluster-key: cannot read .*missing\.pem: No such file"):
        TlsFiles.agent_listener(files.cert, missing)
    with pytest.raises(OperatorError, match=r"--server-ca-cert: cannot read .*missing\.pem: No such file"):
        TlsFiles.frontend_listener(files.cert, files.key, missing, alpn="h2")
    with pytest.raises(OperatorError, match=r"--ca-cert: cannot read .*: Is a directory"):
        TlsFiles.agent_client(str(tmp_path))


def test_a_key_of_another_certificate_is_blamed_on_the_key(files: Files) -> None:
    """Both files are named."""
    with pytest.raises(OperatorError, match=r"--cluster-key: .*client\.key: key does not match .*crt"):
        TlsFiles.agent_listener(files.cert, files.client_key)


def test_files_in_each_others_place_are_blamed_on_their_flag(files: Files) -> None:
    """A key where the certificate belongs, or a certificate where the key belongs."""
    with pytest.raises(OperatorError, match=r"--cluster-cert: .*server\.key: no certificate found"):
        TlsFiles.agent_listener(files.key, files.cert)
    with pytest.raises(OperatorError, match=r"--cluster-key: cannot use .*server\.crt"):
        TlsFiles.agent_listener(files.cert, files.cert)


def test_an_encrypted_key_is_refused_without_asking_for_a_passphrase(files: Files, tmp_path: Path) -> None:
    """A daemon has no terminal for a passphrase."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(OperatorError, match=r"--cluster-key: .*encrypted\.key: encrypted private key"):
        TlsFiles.agent_listener(files.cert, str(encrypted))


def test_the_expiry_of_the_own_certificate_is_known(files: Files, tmp_path: Path) -> None:
    """`/status` shows it, for years in both of X.509's notations."""
    for year in (2049, 2050, 2077):
        end = datetime(year, 5, 17, 1, 2, 3, tzinfo=UTC)
        authority = Authority.create("root", validity=timedelta(days=365 * 60))
        pair = authority.issue_server(["x"], validity=end - datetime.now(UTC)).write(tmp_path, f"{year}")
        listener = TlsFiles.agent_listener(*map(str, pair))
        assert listener.expires is not None
        assert abs(listener.expires - end) < timedelta(seconds=2)
        assert listener.valid_from is not None
        assert abs(listener.valid_from - datetime.now(UTC)) < BACKDATED + timedelta(minutes=1)
    assert files.listener().status() == {
        "files": {"--cluster-cert": files.cert, "--cluster-key": files.key, "--cluster-ca-cert": files.ca},
        "certificateExpires": files.listener().expires.isoformat(),  # type: ignore[union-attr]
        "reloadError": None,
    }


def test_an_expired_own_certificate_is_a_warning(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong clock, or a file about to be renewed, must not keep the program from starting."""
    pair = files.authority.issue_server(["x"], validity=timedelta(hours=-1)).write(tmp_path, "old")
    with caplog.at_level(logging.WARNING):
        TlsFiles.agent_listener(*map(str, pair))
    assert "certificate expired" in caplog.text


def test_unchanged_files_give_the_same_context_and_are_not_read_again(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context per connection costs some microseconds while nothing changes."""
    listener = files.listener()
    first = listener.context()
    built: list[object] = []
    monkeypatch.setattr(type(listener), "_build", lambda *words: built.append(words))
    assert all(listener.context() is first for _ in range(200))
    assert built == []


def test_a_broken_new_file_keeps_the_old_context_and_is_reported_once(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-written files change nothing but the log; valid ones are loaded again."""
    listener = files.listener()
    old = listener.context()
    good = Path(files.cert).read_bytes()
    with caplog.at_level(logging.INFO):
        Path(files.cert).write_bytes(good[:100])
        assert [listener.context() for _ in range(3)] == [old] * 3
        assert [r.getMessage() for r in caplog.records] == ["TLS reload failed"]
        assert "--cluster-cert" in listener.reload_error
        Path(files.cert).write_bytes(good)
        reloaded = listener.context()

    assert reloaded is not old
    assert listener.reload_error == ""
    assert caplog.records[-1].getMessage() == "certificate reloaded"


def test_a_certificate_replaced_before_its_key_waits_for_the_key(files: Files) -> None:
    """Two files cannot change at once; in between the old pair is used."""
    listener = files.listener()
    old = listener.context()
    new = files.authority.issue_server(["localhost"])
    Path(files.cert).write_bytes(new.cert_pem)
    assert listener.context() is old
    assert "does not match" in listener.reload_error
    Path(files.key).write_bytes(new.key_pem)
    assert listener.context() is not old


def test_removed_files_keep_the_old_context(files: Files) -> None:
    """The last good context stays in use when a file disappears."""
    listener = files.listener()
    old = listener.context()
    os.unlink(files.ca)

    assert listener.context() is old
    assert "--cluster-ca-cert" in listener.reload_error


def test_a_symlink_swap_as_kubelet_does_it_is_seen(tmp_path: Path) -> None:
    """Secrets are mounted as links through `..data`, which is turned to a new directory at once."""
    old, new = make_files(tmp_path / "v1"), make_files(tmp_path / "v2")
    (tmp_path / "..data").symlink_to("v1")
    for name in ("server.crt", "server.key", "ca.crt"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    listener = TlsFiles.agent_listener(*(str(tmp_path / n) for n in ("server.crt", "server.key", "ca.crt")))
    assert handshake(old.client().context(), listener.context()).client.version()

    (tmp_path / "..new").symlink_to("v2")
    os.replace(tmp_path / "..new", tmp_path / "..data")

    assert handshake(new.client().context(), listener.context()).client.version()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(old.client().context(), listener.context())
