"""Loads cluster access from a kubeconfig file or from the pod's service account.

Unsupported fields (exec plugin, proxy, impersonation) are errors: ignoring them would fail later,
with an unclear message.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from bootbridge.errors import OperatorError
from bootbridge.kube.access import BearerToken, ClusterAccess, FileOrInline, TlsClientConfig

# Characters allowed in a request line and a Host header; no user, query or fragment.
_URL_SAFE = re.compile(r"[A-Za-z0-9._~:%\[\]/+-]+")
SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_USE_A_TOKEN = "use a client certificate, token or tokenFile instead"
_REFUSED_USER_FIELDS = {
    "exec": f"exec credential plugins are not supported; {_USE_A_TOKEN}",
    "auth-provider": f"auth providers are not supported; {_USE_A_TOKEN}",
    "username": f"password authentication is not supported; {_USE_A_TOKEN}",
    "as": "impersonation is not supported; grant this user the permissions instead",
}


def load_access(
    kubeconfig: str,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT_FOLDER,
) -> ClusterAccess:
    """Loads the kubeconfig; if empty, the service account of the pod."""
    return load_kubeconfig(Path(kubeconfig)) if kubeconfig else load_in_cluster(environ, service_account)


class NotInCluster(OperatorError):
    """No pod's environment, and no kubeconfig: waiting does not change that."""


def load_in_cluster(environ: Mapping[str, str], service_account: Path) -> ClusterAccess:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise NotInCluster(
            "not inside a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
            subject="--kubeconfig",
            hint="set --kubeconfig=FILE outside a pod",
        )
    if not _URL_SAFE.fullmatch(host):
        raise OperatorError(f"invalid host {host!r}", subject="KUBERNETES_SERVICE_HOST")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise OperatorError(f"invalid port {port!r}", subject="KUBERNETES_SERVICE_PORT")
    ca, token = service_account / "ca.crt", service_account / "token"
    return ClusterAccess(
        host=host,
        port=int(port),
        server_name=host,
        tls=TlsClientConfig(FileOrInline("in-cluster CA", ca)),
        token=BearerToken(FileOrInline("in-cluster token", token)),
    ).check()


def load_kubeconfig(path: Path, *, without_user: bool = False) -> ClusterAccess:
    """Loads the current context; ``without_user`` only the API server's address and CA."""
    root = _Section(_parse(path), path)
    context_name = root.text("current-context", required=True)
    context = root.named("contexts", context_name, "context")
    cluster = root.named("clusters", context.text("cluster", required=True), "cluster")
    if without_user:
        return _access(cluster, _Section({}, path, "users")).check()
    user_name = context.text("user")
    user = root.named("users", user_name, "user") if user_name else _Section({}, path, "users")
    _refuse_unsupported(cluster, user)
    return _access(cluster, user).check()


def _access(cluster: _Section, user: _Section) -> ClusterAccess:
    url = _server_url(cluster)
    token = user.source("tokenFile", "token", encoded=False)
    host = url.hostname or ""
    if url.scheme == "http" and token and not _is_loopback(host):
        raise cluster.wrong("server", "plain http would send the user's token unencrypted", "use https://")
    return ClusterAccess(
        host=host,
        port=url.port or (443 if url.scheme == "https" else 80),
        base_path=url.path.rstrip("/"),
        server_name=cluster.text("tls-server-name") or host,
        tls=_tls(cluster, user) if url.scheme == "https" else None,
        token=BearerToken(token) if token else None,
    )


def _server_url(cluster: _Section) -> SplitResult:
    server = cluster.text("server", required=True)
    try:
        url = urlsplit(server if "://" in server else f"https://{server}")
        usable = url.scheme in ("https", "http") and url.hostname and url.port != 0
        usable = usable and not url.query and not url.fragment
    except ValueError:
        usable = False
    if not usable or not _URL_SAFE.fullmatch(url.netloc + url.path):
        raise cluster.wrong("server", "invalid URL of an API server", "expected https://host:port")
    return url


def _tls(cluster: _Section, user: _Section) -> TlsClientConfig:
    ca = cluster.source("certificate-authority", "certificate-authority-data")
    insecure = cluster.flag("insecure-skip-tls-verify")
    if ca and insecure:
        raise cluster.wrong("insecure-skip-tls-verify", "conflicts with certificate-authority")
    certificate = user.source("client-certificate", "client-certificate-data")
    key = user.source("client-key", "client-key-data")
    if certificate and not key:
        raise user.wrong("client-key", "required with client-certificate")
    if key and not certificate:
        raise user.wrong("client-certificate", "required with client-key")
    return TlsClientConfig(ca, certificate, key, insecure=insecure)


def _refuse_unsupported(cluster: _Section, user: _Section) -> None:
    for field, reason in _REFUSED_USER_FIELDS.items():
        if user.has(field):
            raise user.wrong(field, reason)
    if cluster.has("proxy-url"):
        raise cluster.wrong("proxy-url", "HTTP proxies are not supported")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parse(path: Path) -> Any:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror}", subject="--kubeconfig") from None
    except UnicodeDecodeError:
        raise OperatorError(f"{path}: invalid UTF-8", subject="--kubeconfig") from None
    if text.lstrip().startswith("{"):
        return _parse_json(text, path)
    return _parse_yaml(text, path)


def _parse_json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _parse_yaml(text, path)  # YAML in flow style starts with a brace too


def _parse_yaml(text: str, path: Path) -> Any:
    import yaml  # imported late: only a YAML kubeconfig needs it

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise OperatorError(f"{path}: invalid YAML{place}", subject="--kubeconfig") from None


class _Section:
    """One mapping of the kubeconfig, with file and field path for error messages."""

    def __init__(self, value: Any, path: Path, place: str = "") -> None:
        self._path = path
        self._place = place
        if not isinstance(value, dict):
            raise OperatorError(f"{path}: {place or 'document'}: mapping expected", subject="--kubeconfig")
        self._value: dict[str, Any] = value

    def has(self, field: str) -> bool:
        return bool(self._value.get(field))

    def text(self, field: str, *, required: bool = False) -> str:
        value = self._value.get(field)
        if value is None or value == "":
            if required:
                raise self.wrong(field, "required field missing")
            return ""
        if not isinstance(value, str):
            raise self.wrong(field, "string expected")
        return value

    def flag(self, field: str) -> bool:
        value = self._value.get(field, False)
        if not isinstance(value, bool):
            raise self.wrong(field, "true or false expected")
        return value

    def named(self, collection: str, name: str, inner: str) -> _Section:
        entries = self._value.get(collection) or []
        if not isinstance(entries, list):
            raise self.wrong(collection, "list expected")
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                return _Section(entry.get(inner) or {}, self._path, f"{collection}[{name}].{inner}")
        raise self.wrong(collection, f"entry {name!r} not found")

    def source(self, file_field: str, data_field: str, *, encoded: bool = True) -> FileOrInline | None:
        """Inline data takes precedence over a file, except for tokens, as in client-go."""
        path, data = self.text(file_field), self.text(data_field)
        if path and not (data and encoded):
            return FileOrInline(self._where(file_field), self._path.parent / path)
        if not data:
            return None
        content = self._decoded(data_field) if encoded else data.encode()
        return FileOrInline(self._where(data_field), data=content)

    def wrong(self, field: str, message: str, hint: str = "") -> OperatorError:
        return OperatorError(message, subject=self._where(field), hint=hint)

    def _decoded(self, field: str) -> bytes:
        try:
            return base64.b64decode("".join(self.text(field).split()), validate=True)
        except (binascii.Error, ValueError):
            raise self.wrong(field, "invalid base64") from None

    def _where(self, field: str) -> str:
        return f"{self._path}: {self._place}.{field}" if self._place else f"{self._path}: {field}"
