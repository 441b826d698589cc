"""Address and credentials of one API server; files are read again when they change.

Tokens and keys have no ``repr``, and no error message quotes them.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bootbridge.errors import OperatorError
from bootbridge.runtime import logs

_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class FileOrInline:
    """Bytes from a file or inline in the kubeconfig; ``location`` names file and field in errors."""

    location: str
    path: Path | None = None
    data: bytes = field(default=b"", repr=False)

    def read(self) -> bytes:
        if self.path is None:
            return self.data
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise OperatorError(f"cannot read {self.path}: {error.strerror}", subject=self.location) from None

    def stamp(self) -> tuple[int, ...]:
        """Changes when the file is rewritten or replaced, also through a symlink as kubelet does."""
        if self.path is None:
            return ()
        try:
            status = self.path.stat()
        except OSError:
            return (-1,)
        return (status.st_mtime_ns, status.st_size, status.st_ino)


class BearerToken:
    """A token, inline or from a file that is read for every request."""

    def __init__(self, source: FileOrInline) -> None:
        self._source = source
        self._last_good = ""

    def current(self) -> str:
        """Returns the current token; while its file is unreadable, the last token read."""
        try:
            self._last_good = self._parse(self._source.read())
        except OperatorError:
            if not self._last_good:
                raise
        return self._last_good

    def _parse(self, raw: bytes) -> str:
        token = raw.decode("ascii", "replace").strip()
        if not token:
            raise OperatorError("empty token", subject=self._source.location)
        # Checked here, because the error of an HTTP library would quote the token.
        if not _VISIBLE.fullmatch(token):
            raise OperatorError("invalid character in token", subject=self._source.location)
        return token


class TlsClientConfig:
    """The TLS client context of one API server; rebuilt when one of its files changes."""

    def __init__(
        self,
        ca: FileOrInline | None = None,
        certificate: FileOrInline | None = None,
        key: FileOrInline | None = None,
        *,
        insecure: bool = False,
    ) -> None:
        self._ca = ca
        self._certificate = certificate
        self._key = key
        self._insecure = insecure
        self._stamp: tuple[tuple[int, ...], ...] = ()
        self._rejected: tuple[tuple[int, ...], ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Returns the current context; while a changed file is unusable, the last good one."""
        stamp = tuple(part.stamp() for part in (self._ca, self._certificate, self._key) if part)
        if self._context is not None and stamp == self._stamp:
            return self._context
        try:
            self._context, self._stamp = self._build(), stamp
        except OperatorError as error:
            if self._context is None:
                raise
            if stamp != self._rejected:  # logged once per change, not per attempt
                self._rejected = stamp
                logs.event("kube", logs.WARNING, "credential reload failed", reason=str(error))
        return self._context

    def authorities(self) -> bytes:
        """Returns the CA certificates as PEM; empty if the system's roots apply."""
        return self._ca.read() if self._ca else b""

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self._ca is None:
            context.load_default_certs()
        else:
            _load_authorities(context, self._ca)
        if self._certificate and self._key:
            _load_identity(context, self._certificate, self._key)
        return context


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """One API server: address, TLS and token. ``tls`` is None for plain HTTP on loopback."""

    host: str
    port: int
    base_path: str = ""
    server_name: str = ""
    tls: TlsClientConfig | None = field(default=None, repr=False)
    token: BearerToken | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def address_only(self) -> dict[str, Any]:
        """Returns a kubeconfig with address and CA, and no user."""
        scheme = "https" if self.tls else "http"
        cluster: dict[str, Any] = {"server": f"{scheme}://{self.authority}{self.base_path}"}
        if self.server_name and self.server_name != self.host:
            cluster["tls-server-name"] = self.server_name
        if self.tls and (ca := self.tls.authorities()):
            cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "cluster",
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster"}}],
            "clusters": [{"name": "cluster", "cluster": cluster}],
        }

    def check(self) -> ClusterAccess:
        """Reads every file once, so that an invalid one is reported at start."""
        if self.tls:
            self.tls.context()
        if self.token:
            self.token.current()
        return self


def _load_authorities(context: ssl.SSLContext, ca: FileOrInline) -> None:
    try:
        context.load_verify_locations(cadata=ca.read().decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        raise OperatorError("no valid CA certificate found (PEM expected)", subject=ca.location) from None


def _load_identity(context: ssl.SSLContext, certificate: FileOrInline, key: FileOrInline) -> None:
    # ssl loads a chain only from a path; certificate and key share one file.
    pem = certificate.read() + b"\n" + key.read()
    with _private_path(pem) as path:
        try:
            context.load_cert_chain(path, password=_refuse_passphrase)
        except _EncryptedKeyError:
            hint = "use an unencrypted key"
            raise OperatorError("encrypted private key", subject=key.location, hint=hint) from None
        except (ssl.SSLError, ValueError) as error:
            detail = getattr(error, "reason", None) or "not PEM"
            message = f"certificate and key do not match or are invalid: {detail}"
            raise OperatorError(message, subject=f"{certificate.location} and {key.location}") from None


class _EncryptedKeyError(Exception):
    """Raised by the passphrase callback of OpenSSL: a daemon has no terminal."""


def _refuse_passphrase() -> str:
    raise _EncryptedKeyError


@contextmanager
def _private_path(data: bytes) -> Iterator[str]:
    """A temporary path that only this process can read: a memfd where Linux allows it."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(data)
            yield f"/proc/self/fd/{descriptor}"
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "identity.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        yield path
