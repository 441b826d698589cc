"""The certificates of a tunnel that was not installed by `bootbridge up`, in one directory.

    ca.crt, ca.key              the CA of server and agents
    server.crt, server.key      of the agent port, and of the frontend over TCP
    agent.crt, agent.key        of all agents; or agent-NAME.crt, agent-NAME.key, one for each
    frontend-ca.*, frontend.*   of callers over TCP, and their own CA

A key is never overwritten, and a renewed certificate keeps its key: one file is replaced by a rename, so that
no program can read a new certificate with an old key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from bootbridge.common.files import Asset, read_file, write_error, write_file
from bootbridge.common.secret_files import read_secret, write_new_secret
from bootbridge.errors import OperatorError
from bootbridge.trust.authority import Authority, KeyKind, PrivateKey, load_private_key
from bootbridge.trust.certificate_chain import CERTIFICATE_PARSE_ERRORS, is_authority
from bootbridge.trust.stored_certificate import (
    CertificateRole,
    CertificateState,
    StoredCertificate,
    alternative_names,
    issuer_of,
    lifetime,
    role_of,
)

VALIDITY = timedelta(days=365)
CA_VALIDITY = timedelta(days=3650)
RENEW_CA = "run `bootbridge certs renew --ca`, then copy ca.crt to the server and every agent"


class CertificateAction(StrEnum):
    CREATED = "created"
    RENEWED = "renewed"
    EXTENDED = "names-added"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class CertificateRequest:
    """A certificate that is wanted; `name` is that of its files."""

    name: str
    common_name: str
    names: tuple[str, ...] = ()

    @property
    def role(self) -> CertificateRole:
        role = role_of(self.name)
        assert role is not None
        return role


@dataclass(frozen=True)
class CertificateResult:
    stored: StoredCertificate
    action: CertificateAction


@dataclass
class _Changes:
    """Files to write, known completely before the first is written."""

    keys: dict[Path, bytes] = field(default_factory=dict)
    certificates: dict[Path, bytes] = field(default_factory=dict)
    actions: dict[str, CertificateAction] = field(default_factory=dict)


class CertificateDirectory:
    def __init__(self, path: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.path = path
        self._clock = clock

    # --- reading

    def stored(self) -> list[StoredCertificate]:
        """Returns all certificates of the directory, CAs first; files with other names are left out."""
        try:
            files = {path.stem for path in self.path.iterdir() if path.suffix in (".crt", ".key")}
        except OSError as error:
            raise OperatorError(
                f"cannot read {self.path}: {error.strerror}", subject="--dir", hint=_CREATE_HINT
            ) from error
        found = [self._inspect(name) for name in sorted(files) if role_of(name)]
        return sorted(found, key=lambda each: (list(CertificateRole).index(each.role), each.name))

    def _inspect(self, name: str) -> StoredCertificate:
        role = role_of(name)
        assert role is not None
        has_key = self._key_path(name).exists()
        try:
            certificate = self._certificate(name)
            if certificate is None:
                raise OperatorError(f"{self._cert_path(name).name} is missing")
            problem = self._mismatch(name, certificate, self._certificate(issuer_of(name)))
        except OperatorError as error:
            return StoredCertificate(self.path, name, role, None, has_key, str(error))
        return StoredCertificate(self.path, name, role, certificate, has_key, problem)

    def _mismatch(self, name: str, certificate: x509.Certificate, issuer: x509.Certificate | None) -> str:
        """Returns why the files do not belong together; empty if they do, or if only the key is elsewhere."""
        try:
            key = self._key(name)
        except OperatorError as error:
            return str(error)
        if key is not None and key.public_key() != certificate.public_key():
            return f"{name}.key does not match {name}.crt"
        ca = issuer_of(name)
        if name == ca:
            return "" if is_authority(certificate) else "not a CA certificate"
        if issuer is None:
            return f"{ca}.crt is missing"
        return "" if _issued_by(issuer, certificate) else f"not issued by {ca}.crt"

    # --- creating

    def create(
        self,
        requests: Sequence[CertificateRequest],
        *,
        validity: timedelta = VALIDITY,
        ca_validity: timedelta = CA_VALIDITY,
        key_kind: KeyKind = "ecdsa-p256",
    ) -> list[CertificateResult]:
        """Issues what is missing, and names that a certificate lacks. Everything is written, or nothing."""
        changes = _Changes()
        authorities: dict[str, Authority] = {}
        for name in dict.fromkeys(issuer_of(request.name) for request in requests):
            if not self._cert_path(name).exists():
                authorities[name] = self._new_authority(name, ca_validity, key_kind, changes)
        for request in requests:
            self._create_leaf(request, validity, authorities, changes)
        self._write(changes)
        return self._results(changes)

    def _new_authority(
        self, name: str, validity: timedelta, key_kind: KeyKind, changes: _Changes
    ) -> Authority:
        key = self._key(name)  # left by a run that was killed
        authority = Authority.create(_CA_NAMES[name], key=key or key_kind, validity=validity)
        if key is None:
            changes.keys[self._key_path(name)] = authority.key_pem
        changes.certificates[self._cert_path(name)] = authority.cert_pem
        changes.actions[name] = CertificateAction.CREATED
        return authority

    def _create_leaf(
        self,
        request: CertificateRequest,
        validity: timedelta,
        authorities: dict[str, Authority],
        changes: _Changes,
    ) -> None:
        name, ca = request.name, issuer_of(request.name)
        old, path = self._certificate(name), self._cert_path(name)
        if old is None:
            authority, key = self._authority(ca, authorities), self._key(name)
            if request.role is CertificateRole.SERVER:
                issued = authority.issue_server(
                    request.names, common_name=request.common_name, validity=validity, key=key
                )
            else:
                issued = authority.issue_client(
                    request.common_name, names=request.names, validity=validity, key=key
                )
            if key is None:
                changes.keys[self._key_path(name)] = issued.key_pem
            changes.certificates[path] = issued.cert_pem
            changes.actions[name] = CertificateAction.CREATED
            return
        issuer = authorities[ca].certificate if ca in authorities else self._certificate(ca)
        if problem := self._mismatch(name, old, issuer):
            raise _foreign(path, problem)
        held = alternative_names(old)
        if missing := [each for each in request.names if each not in held]:
            authority = self._authority(ca, authorities)
            changes.certificates[path] = authority.reissue(old, lifetime(old), [*held, *missing])
            changes.actions[name] = CertificateAction.EXTENDED

    # --- renewing

    def renew(
        self, *, validity: timedelta | None = None, force: bool = False, ca: bool = False
    ) -> list[CertificateResult]:
        """Renews certificates that are due, or all, with the same keys, names and (default) validity.

        ``ca``: the CAs instead. They keep their keys too: certificates that they have issued stay valid.
        """
        changes = _Changes()
        authorities: dict[str, Authority] = {}
        for each in self.stored():
            if (each.role is CertificateRole.CA) is not ca:
                continue
            if each.problem or each.certificate is None:
                raise _foreign(each.cert_path, each.problem)
            if not (force or ca) and each.state(self._clock()) is CertificateState.VALID:
                continue
            lasting = validity or lifetime(each.certificate)
            authority = self._authority(issuer_of(each.name), authorities, may_be_expired=ca)
            changes.certificates[each.cert_path] = (
                _renewed_ca(each.cert_path, authority, lasting)
                if ca
                else authority.reissue(each.certificate, lasting)
            )
            changes.actions[each.name] = CertificateAction.RENEWED
        self._write(changes)
        return self._results(changes)

    # --- files

    def _cert_path(self, name: str) -> Path:
        return self.path / f"{name}.crt"

    def _key_path(self, name: str) -> Path:
        return self.path / f"{name}.key"

    def _certificate(self, name: str) -> x509.Certificate | None:
        path = self._cert_path(name)
        if not path.exists():
            return None
        try:
            certificate = x509.load_pem_x509_certificate(read_file(path))
            certificate.extensions  # noqa: B018  the library parses them late
        except CERTIFICATE_PARSE_ERRORS as error:
            raise OperatorError("invalid PEM certificate", subject=str(path), hint=_MOVE_HINT) from error
        return certificate

    def _key(self, name: str) -> PrivateKey | None:
        path = self._key_path(name)
        if not path.exists():
            return None
        try:
            return load_private_key(read_secret(path, str(path)))
        except ValueError as error:
            raise OperatorError(
                f"invalid private key: {error}", subject=str(path), hint=_MOVE_HINT
            ) from error

    def _authority(
        self, name: str, authorities: dict[str, Authority], *, may_be_expired: bool = False
    ) -> Authority:
        """Returns the CA that signs; reads it at the first call, because unchanged files need no CA key."""
        if name not in authorities:
            certificate, key = self._certificate(name), self._key(name)
            path, key_path = self._cert_path(name), self._key_path(name)
            if certificate is None:
                raise OperatorError("file not found", subject=str(path), hint=_CREATE_HINT)
            if key is None:
                hint = f"the key is required to sign: copy it to {key_path}, or give another --dir"
                raise OperatorError("file not found", subject=str(key_path), hint=hint)
            if problem := self._mismatch(name, certificate, certificate):
                raise _foreign(path, problem)
            if certificate.not_valid_after_utc <= self._clock() and not may_be_expired:
                problem = f"CA certificate expired at {certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
                raise OperatorError(problem, subject=str(path), hint=RENEW_CA)
            authorities[name] = Authority(certificate, key)
        return authorities[name]

    def _write(self, changes: _Changes) -> None:
        """Writes keys before certificates. If it fails or is interrupted, the directory is as before."""
        new_directory = not self.path.exists()
        before = {path: path.read_bytes() for path in changes.certificates if path.exists()}
        written: list[Path] = []
        try:
            if changes.certificates:
                _make_directory(self.path)
            for path, data in changes.keys.items():
                write_new_secret(path, data, str(path))
                written.append(path)
            for path, data in changes.certificates.items():
                written.append(path)
                write_file(path, Asset(data))
        except BaseException:
            _undo(written, before)
            if new_directory and self.path.is_dir():
                self.path.rmdir()
            raise

    def _results(self, changes: _Changes) -> list[CertificateResult]:
        return [
            CertificateResult(each, changes.actions.get(each.name, CertificateAction.UNCHANGED))
            for each in self.stored()
        ]


_CA_NAMES = {"ca": "bootbridge tunnel CA", "frontend-ca": "bootbridge frontend CA"}
_CREATE_HINT = "create certificates with `bootbridge certs create`"
_MOVE_HINT = "restore it, or move it away and run `bootbridge certs create` again"


def _foreign(path: Path, problem: str) -> OperatorError:
    hint = "these files do not belong together: move them away, or give another --dir"
    return OperatorError(problem, subject=str(path), hint=hint)


def _issued_by(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *CERTIFICATE_PARSE_ERRORS):
        return False
    return True


def _renewed_ca(path: Path, authority: Authority, validity: timedelta) -> bytes:
    if authority.certificate.subject != authority.certificate.issuer:
        hint = "renew it with the CA that issued it"
        raise OperatorError("not self-signed", subject=str(path), hint=hint)
    return authority.renewed(validity).cert_pem


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OperatorError(f"not a directory: {path}", subject="--dir", hint="choose another one") from None
    except OSError as error:
        raise write_error(path, error) from error


def _undo(written: Iterable[Path], before: dict[Path, bytes]) -> None:
    for path in written:
        if path in before:
            write_file(path, Asset(before[path]))
        else:
            path.unlink(missing_ok=True)
