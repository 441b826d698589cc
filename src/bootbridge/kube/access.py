"""How to reach one API server and prove who we are, with files re-read when they change.

Nothing in here shows a secret: tokens and keys have no ``repr``, and no message quotes them.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bootbridge.errors import OperatorError
from bootbridge.runtime import logs

_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class FileOrInline:
    """Bytes in a file of their own or inside the kubeconfig; ``place`` names file and field."""

    place: str
    path: Path | None = None
    data: bytes = field(default=b"", repr=False)

    def read(self) -> bytes:
        if self.path is None:
            return self.data
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise OperatorError(f"cannot read {self.path}: {error.strerror}", subject=self.place) from None

    def stamp(self) -> tuple[int, ...]:
        """Differs after the file was rewritten or replaced (also through a symlink, as kubelet does)."""
        if self.path is None:
            return ()
        try:
            status = self.path.stat()
        except OSError:
            return (-1,)
        return (status.st_mtime_ns, status.st_size, status.st_ino)


class BearerToken:
    """A token, or a file that holds the current one."""

    def __init__(self, material: FileOrInline) -> None:
        self._material = material
        self._last_good = ""

    def current(self) -> str:
        """The token as of now; while its file is unreadable, the last one read stays in use."""
        try:
            self._last_good = self._parse(self._material.read())
        except OperatorError:
            if not self._last_good:
                raise
        return self._last_good

    def _parse(self, raw: bytes) -> str:
        token = raw.decode("ascii", "replace").strip()
        if not token:
            raise OperatorError("the token is empty", subject=self._material.place)
        # Checked here because an HTTP library would quote the illegal header value in its complaint.
        if not _VISIBLE.fullmatch(token):
            raise OperatorError("the token holds characters that no token has", subject=self._material.place)
        return token


class TlsClientConfig:
    """The TLS client context of one API server, rebuilt when one of its files changes."""

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
        self._refused: tuple[tuple[int, ...], ...] = ()
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """The context as of now; while a changed file is unusable, the last good context stays in use."""
        stamp = tuple(part.stamp() for part in (self._ca, self._certificate, self._key) if part)
        if self._context is not None and stamp == self._stamp:
            return self._context
        try:
            self._context, self._stamp = self._build(), stamp
        except OperatorError as error:
            if self._context is None:
                raise
            if stamp != self._refused:  # said once, however often it is tried
                self._refused = stamp
                logs.event("kube", logs.WARNING, "the files of before stay in use", why=str(error))
        return self._context

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
    """One API server: address, trust and credentials. ``tls`` is None for plain HTTP on loopback."""

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

    def check(self) -> ClusterAccess:
        """Read every file once, so that a bad one is reported at start and not at the first call."""
        if self.tls:
            self.tls.context()
        if self.token:
            self.token.current()
        return self


def _load_authorities(context: ssl.SSLContext, ca: FileOrInline) -> None:
    try:
        context.load_verify_locations(cadata=ca.read().decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        raise OperatorError("holds no usable CA certificate in PEM form", subject=ca.place) from None


def _load_identity(context: ssl.SSLContext, certificate: FileOrInline, key: FileOrInline) -> None:
    # ssl loads a chain from a path only; one private file holds both parts, because a key alone is no chain.
    pem = certificate.read() + b"\n" + key.read()
    with _private_path(pem) as path:
        try:
            context.load_cert_chain(path, password=_refuse_passphrase)
        except _EncryptedKeyError:
            raise OperatorError("the key is encrypted; give an unencrypted one", subject=key.place) from None
        except (ssl.SSLError, ValueError) as error:
            detail = getattr(error, "reason", None) or "not PEM"
            message = f"certificate and key do not load together ({detail})"
            raise OperatorError(message, subject=f"{certificate.place} and {key.place}") from None


class _EncryptedKeyError(Exception):
    """Raised from inside OpenSSL's question for a passphrase, which nobody is there to answer."""


def _refuse_passphrase() -> str:
    raise _EncryptedKeyError


@contextmanager
def _private_path(data: bytes) -> Iterator[str]:
    """A path that only this process can read and that is gone afterwards: memory where Linux allows it."""
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
