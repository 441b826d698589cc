"""TLS contexts from certificate, key and CA files, reloaded when a file changes.

Call `context()` for every new connection: it costs three `stat` calls. Open connections keep their
context. Invalid new files are logged once, and the last good context stays in use.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial

from bootbridge.errors import OperatorError
from bootbridge.metrics import Family, Gauge
from bootbridge.runtime import logs

# Go's list of secure cipher suites, by Go's names. TLS 1.3 suites cannot be configured in Go either.
_TLS13_SUITES = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
_OPENSSL_NAMES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
_VERSIONS = {
    "VersionTLS10": ssl.TLSVersion.TLSv1,
    "VersionTLS11": ssl.TLSVersion.TLSv1_1,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}

_CERTIFICATE_BLOCK = re.compile(
    rb"^-----BEGIN CERTIFICATE-----[ \t]*\r?\n([A-Za-z0-9+/=\s]*?)-----END CERTIFICATE-----", re.MULTILINE
)

# The fields of YYYYMMDDHHMMSS; importing datetime.strptime would cost 20 ms of start-up.
_TIME_FIELDS = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14))


@dataclass(frozen=True)
class TlsPolicy:
    """The minimum version and the TLS 1.2 cipher suites (OpenSSL names) of a listener."""

    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: tuple[str, ...] = tuple(_OPENSSL_NAMES.values())

    @classmethod
    def from_flags(cls, tls_min_version: str = "", cipher_suites: Sequence[str] = ()) -> TlsPolicy:
        """Parses `--tls-min-version` and `--cipher-suites`; empty values mean the defaults."""
        version = parse_min_version(tls_min_version)
        if not cipher_suites:
            return cls(version)
        ciphers = parse_cipher_suites(cipher_suites)
        # With TLS 1.3 suites only, no older version can be negotiated.
        return cls(version if ciphers else ssl.TLSVersion.TLSv1_3, ciphers)

    @property
    def is_weak(self) -> bool:
        return self.min_version < ssl.TLSVersion.TLSv1_2


def parse_min_version(name: str) -> ssl.TLSVersion:
    if not name:
        return ssl.TLSVersion.TLSv1_2
    if name not in _VERSIONS:
        known = ", ".join(_VERSIONS)
        raise OperatorError(
            f'unsupported TLS version "{name}", supported values are: {known}',
            subject="--tls-min-version",
            hint="omit it for VersionTLS12",
        )
    return _VERSIONS[name]


def parse_cipher_suites(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the OpenSSL names of the suites below TLS 1.3, in the given order."""
    for name in names:
        if name not in _OPENSSL_NAMES and name not in _TLS13_SUITES:
            raise OperatorError(
                f"cipher suite {name} not supported, doesn't exist or considered as insecure",
                subject="--cipher-suites",
                hint="for example TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, or omit it",
            )
    return tuple(_OPENSSL_NAMES[name] for name in names if name in _OPENSSL_NAMES)


@dataclass(frozen=True)
class FlagFile:
    """A file and the flag that names it."""

    flag: str
    path: str

    def read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except OSError as error:
            raise self.problem(
                f"cannot read {self.path}: {error.strerror}", "use a file that this user can read"
            ) from error

    def problem(self, message: str, hint: str = "") -> OperatorError:
        return OperatorError(message, subject=self.flag, hint=hint)

    def signature(self) -> tuple[int, ...]:
        """Changes whenever the content may have changed: file rewritten or replaced, symlink moved."""
        try:
            status = os.stat(self.path)
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev, status.st_size


class TlsFiles:
    """One side of TLS; created by `agent_listener`, `frontend_listener` or `agent_client`."""

    def __init__(
        self,
        side: int,
        *,
        cert: FlagFile | None,
        key: FlagFile | None,
        ca: FlagFile | None,
        alpn: Sequence[str],
        policy: TlsPolicy,
    ) -> None:
        self._side = side
        self._cert, self._key, self._ca = cert, key, ca
        self._alpn = list(alpn)
        self._policy = policy
        self._files = [file for file in (cert, key, ca) if file is not None]
        self.valid_from: datetime | None = None
        self.expires: datetime | None = None
        self.trusted: frozenset[bytes] = frozenset()  # SHA-256 of each certificate of the CA file
        self.reload_error = ""
        self._signature = self._signatures()
        self._context = self._build()

    @classmethod
    def agent_listener(
        cls, cert: str, key: str, ca: str = "", *, policy: TlsPolicy | None = None
    ) -> TlsFiles:
        """For the agent port; with a CA, agents need a certificate of that CA."""
        return cls(
            ssl.PROTOCOL_TLS_SERVER,
            cert=FlagFile("--cluster-cert", cert),
            key=FlagFile("--cluster-key", key),
            ca=FlagFile("--cluster-ca-cert", ca) if ca else None,
            alpn=["h2"],
            policy=policy or TlsPolicy(),
        )

    @classmethod
    def frontend_listener(
        cls, cert: str, key: str, ca: str, *, alpn: str, policy: TlsPolicy | None = None
    ) -> TlsFiles:
        """For the frontend port over TCP, always with client certificates; `alpn` is `h2` or `http/1.1`."""
        return cls(
            ssl.PROTOCOL_TLS_SERVER,
            cert=FlagFile("--server-cert", cert),
            key=FlagFile("--server-key", key),
            ca=FlagFile("--server-ca-cert", ca),
            alpn=[alpn],
            policy=policy or TlsPolicy(),
        )

    @classmethod
    def agent_client(
        cls, ca: str = "", cert: str = "", key: str = "", *, alpn_protos: Sequence[str] = ()
    ) -> TlsFiles:
        """For an agent's connection to a server; without a CA the system's roots apply."""
        return cls(
            ssl.PROTOCOL_TLS_CLIENT,
            cert=FlagFile("--agent-cert", cert) if cert else None,
            key=FlagFile("--agent-key", key) if cert else None,
            ca=FlagFile("--ca-cert", ca) if ca else None,
            alpn=list(dict.fromkeys((*alpn_protos, "h2"))),
            policy=TlsPolicy(),
        )

    def context(self) -> ssl.SSLContext:
        """Returns the current context; never raises, because the last good one stays in use."""
        signature = self._signatures()
        if signature != self._signature:
            self._reload(signature)
        return self._context

    def status(self) -> dict[str, object]:
        """Returns for `/status`: files in use, expiry, and the error of the last reload."""
        return {
            "files": {file.flag: file.path for file in self._files},
            "certificateExpires": self.expires.isoformat() if self.expires else None,
            "reloadError": self.reload_error or None,
        }

    def register_validity(self, not_before: Family[Gauge], not_after: Family[Gauge]) -> None:
        """Shows the validity of the certificate in use as gauges, by flag; without a certificate nothing."""
        if self._cert is not None:
            not_before.labels(self._cert.flag).set_function(partial(self._current, "valid_from"))
            not_after.labels(self._cert.flag).set_function(partial(self._current, "expires"))

    def _current(self, attribute: str) -> float:
        self.context()  # reloads first: without new connections, a renewed certificate would look old
        moment: datetime = getattr(self, attribute)
        return moment.timestamp()

    def _signatures(self) -> tuple[tuple[int, ...], ...]:
        return tuple(file.signature() for file in self._files)

    def _reload(self, signature: tuple[tuple[int, ...], ...]) -> None:
        try:
            self._context = self._build()
        except OperatorError as error:
            # Keeps the old signature, so that a temporary failure (no file descriptor) is tried again.
            if str(error) != self.reload_error:
                self.reload_error = str(error)
                logs.event("tls", logs.ERROR, "TLS reload failed", reason=self.reload_error)
            return
        self._signature = signature
        self.reload_error = ""
        flags = ",".join(file.flag for file in self._files)
        logs.event("tls", logs.INFO, "certificate reloaded", files=flags, expires=self.expires)

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(self._side)
        _harden(context, self._policy)
        context.set_alpn_protocols(self._alpn)
        trusted = self._load_trust(context)
        if self._cert is not None and self._key is not None:
            _load_pair(context, self._cert, self._key)
            self.valid_from, self.expires = _validity(self._cert)
        self.trusted = frozenset(hashlib.sha256(der).digest() for der in trusted)
        return context

    def _load_trust(self, context: ssl.SSLContext) -> list[bytes]:
        """Returns the certificates of the CA file."""
        trusted = certificates(self._ca) if self._ca is not None else []
        for der in trusted:
            context.load_verify_locations(cadata=der)
        if self._ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        elif self._side == ssl.PROTOCOL_TLS_CLIENT:
            _load_system_roots(context)
        return trusted


def certificates(file: FlagFile) -> list[bytes]:
    """Returns the certificates of a PEM file as DER, by the rules of client-go.

    Only CERTIFICATE blocks without headers count; other text and invalid base64 are skipped.
    A block that is not a certificate is an error, and so is a file without any certificate.
    """
    found = []
    for block in _CERTIFICATE_BLOCK.finditer(file.read()):
        try:
            der = base64.b64decode(b"".join(block[1].split()), validate=True)
        except binascii.Error:
            continue
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=der)
        except ssl.SSLError as error:
            raise file.problem(f"{file.path}: invalid CERTIFICATE block") from error
        found.append(der)
    if not found:
        raise file.problem(f"{file.path}: no certificate found", "use a PEM file")
    return found


def _harden(context: ssl.SSLContext, policy: TlsPolicy) -> None:
    context.minimum_version = policy.min_version
    # OpenSSL allows TLS 1.0 and 1.1 only at security level 0.
    context.set_ciphers(":".join(policy.ciphers or ("HIGH",)) + (":@SECLEVEL=0" if policy.is_weak else ""))
    # No tickets: connections are long-lived, and a resumed session would skip the certificate check.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    if context.protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    # As in Go: every certificate of the CA file is a trust anchor, and common names do not count.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.hostname_checks_common_name = False


def _load_pair(context: ssl.SSLContext, cert: FlagFile, key: FlagFile) -> None:
    certificates(cert)
    key.read()

    def refuse_passphrase() -> str:
        raise key.problem(f"{key.path}: encrypted private key", "use a key without a passphrase")

    try:
        context.load_cert_chain(cert.path, key.path, password=refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise key.problem(f"{key.path}: key does not match the certificate {cert.path}") from error
        reason = (error.reason or "not a PEM private key").replace("_", " ").lower()
        raise key.problem(f"cannot use {key.path} with {cert.path}: {reason}") from error
    except OSError as error:
        raise key.problem(f"cannot read {cert.path} and {key.path}: {error.strerror}") from error


def _validity(cert: FlagFile) -> tuple[datetime, datetime]:
    valid_from, expires = validity(certificates(cert)[0])
    if expires.timestamp() < time.time():
        # Not an error: our clock may be wrong, and a new file may arrive at any moment.
        logs.event("tls", logs.WARNING, "certificate expired", flag=cert.flag, file=cert.path, at=expires)
    return valid_from, expires


def _load_system_roots(context: ssl.SSLContext) -> None:
    paths = ssl.get_default_verify_paths()
    if not paths.cafile and not (paths.capath and os.listdir(paths.capath)):
        raise OperatorError(
            "no system root certificates found",
            subject="--ca-cert",
            hint="set it to the CA file of the proxy server",
        )
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)


def not_after(der: bytes) -> datetime:
    """Parses notAfter from a DER certificate."""
    return validity(der)[1]


@lru_cache(maxsize=256)  # all chains of agents end in the same CA, and agents may share a certificate
def validity(der: bytes) -> tuple[datetime, datetime]:
    """Parses notBefore and notAfter from a DER certificate."""

    def element(at: int) -> tuple[int, int, int]:
        """Returns tag, start and end of the DER element at this offset."""
        length, start = der[at + 1], at + 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(der[at + 2 : start], "big")
        return der[at], start, start + length

    _, at, _ = element(0)
    _, at, _ = element(at)
    if element(at)[0] == 0xA0:  # the version field, which X.509 v1 certificates do not have
        at = element(at)[2]
    for _ in ("serial number", "signature algorithm", "issuer"):
        at = element(at)[2]
    _, at, _ = element(at)
    first = element(at)
    return _time(der, first), _time(der, element(first[2]))


def _time(der: bytes, element: tuple[int, int, int]) -> datetime:
    tag, start, end = element
    text = der[start:end].decode("ascii")
    if tag == 0x17:  # UTCTime, two digits for a year between 1950 and 2049
        text = ("19" if text >= "50" else "20") + text
    year, month, day, hour, minute, second = (int(text[a:b]) for a, b in _TIME_FIELDS)
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
