"""Renders and validates the egress selector, which routes the kube-apiserver's calls through the tunnel.

`configuration` is the kube-apiserver's file. `config_override` makes OpenShift's bootstrap kube-apiserver
read it. `validate` returns the errors that the kube-apiserver would log at its start, with the same rules and
texts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bootbridge.bootstrap.plan.plan import Plan, TunnelPlan

API_VERSIONS = ("apiserver.k8s.io/v1alpha1", "apiserver.k8s.io/v1beta1")
KIND = "EgressSelectorConfiguration"
NAMES = ("cluster", "controlplane", "etcd")
FLAG = "egress-selector-config-file"


def configuration(plan: TunnelPlan) -> dict[str, Any]:
    """Routes calls to pods, services and nodes through the socket, and all others directly."""
    tunnel = {
        "proxyProtocol": str(plan.protocol),
        "transport": {"uds": {"udsName": plan.paths.socket_seen_by_apiserver}},
    }
    return _selections(tunnel)


def direct_configuration() -> dict[str, Any]:
    """Routes all calls directly, as without a tunnel: for a node whose server does not answer."""
    return _selections({"proxyProtocol": "Direct"})


def _selections(tunnel: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSIONS[-1],
        "kind": KIND,
        "egressSelections": [
            {"name": "cluster", "connection": tunnel},
            {"name": "controlplane", "connection": {"proxyProtocol": "Direct"}},
            {"name": "etcd", "connection": {"proxyProtocol": "Direct"}},
        ],
    }


def config_override(plan: Plan) -> dict[str, Any]:
    """Returns the file for `cluster-kube-apiserver-operator render --config-override-files`.

    KubeAPIServerConfig has no field for an egress selector, and ignores unknown ones, so this sets the flag.
    """
    return {
        "apiVersion": "kubecontrolplane.config.openshift.io/v1",
        "kind": "KubeAPIServerConfig",
        "apiServerArguments": {FLAG: [plan.paths.egress_config_seen_by_apiserver]},
    }


# --- the kube-apiserver's validation

_CONNECTION = "service.connection"
_FIELDS: dict[str, dict[str, Any]] = {
    "": {"apiVersion": str, "kind": str, "egressSelections": list},
    "egressSelections[]": {"name": str, "connection": dict},
    "connection": {"proxyProtocol": str, "transport": dict},
    "transport": {"tcp": dict, "uds": dict},
    "tcp": {"url": str, "tlsConfig": dict},
    "tlsConfig": {"caBundle": str, "clientKey": str, "clientCert": str},
    "uds": {"udsName": str},
}


def validate(document: object, exists: Callable[[str], bool] = os.path.exists) -> list[str]:
    """Returns the reasons why a kube-apiserver would reject the configuration.

    `exists` tests whether a file in the configuration exists.
    """
    if not isinstance(document, Mapping):
        return ["couldn't get version/kind: the document is not a mapping"]
    if document.get("kind") != KIND or document.get("apiVersion") not in API_VERSIONS:
        known = " or ".join(API_VERSIONS)
        given = f"{document.get('apiVersion')}/{document.get('kind')}"
        return [f'no kind {given} is registered: write kind {KIND} of apiVersion "{known}"']
    strict = list(_decoding(document, "", ""))
    return strict or list(_validation(document.get("egressSelections") or [], exists))


def _decoding(given: Mapping[str, Any], shape: str, path: str) -> Iterator[str]:
    """Applies strict decoding: no unknown field, no value of another type."""
    fields = _FIELDS[shape]
    for key, value in given.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in fields:
            yield f'strict decoding error: unknown field "{where}"'
        elif value is None:
            continue
        elif not isinstance(value, fields[key]):
            yield f"{where}: invalid type: {_TYPE_NAMES[fields[key]]} required, not {value!r}"
        elif isinstance(value, dict):
            yield from _decoding(value, key, where)
        elif isinstance(value, list):
            yield from _decoding_list(value, f"{key}[]", where)


def _decoding_list(given: list[Any], shape: str, path: str) -> Iterator[str]:
    for index, entry in enumerate(given):
        if isinstance(entry, dict):
            yield from _decoding(entry, shape, f"{path}[{index}]")
        else:
            yield f"{path}[{index}]: invalid type: mapping required, not {entry!r}"


_TYPE_NAMES = {str: "string", dict: "mapping", list: "list"}


def _validation(selections: list[dict[str, Any]], exists: Callable[[str], bool]) -> Iterator[str]:
    for index, selection in enumerate(selections):
        where = f"egressSelections[{index}]"
        for problem in _connection(selection.get("connection") or {}, exists):
            yield f"{where}: {problem}"
    seen: set[str] = set()
    for index, selection in enumerate(selections):
        given = selection.get("name") or ""
        # The old name of the control plane, in exactly this spelling.
        name = "controlplane" if given == "master" else given.lower()
        where = f"egressSelections[{index}]: {_CONNECTION}"
        if name in seen:
            yield f'{where}[{index}]: Duplicate value: "{name}"'
        elif name not in NAMES:
            yield f"{where}: {_not_supported(name, NAMES)}"
        seen.add(name)


def _connection(connection: dict[str, Any], exists: Callable[[str], bool]) -> Iterator[str]:
    protocol, transport = connection.get("proxyProtocol") or "", connection.get("transport")
    if protocol == "Direct":
        if transport is not None:
            yield _invalid("transport", "direct", "config must be absent for direct connect")
    elif protocol not in ("HTTPConnect", "GRPC"):
        yield f"{_CONNECTION}.protocol: {_not_supported(protocol, ('Direct', 'HTTPConnect', 'GRPC'))}"
    elif transport is None:
        yield _required("transport", f"transport must be set for {protocol}")
    elif protocol == "GRPC":
        yield from _grpc(transport)
    else:
        yield from _http_connect(transport, exists)


def _grpc(transport: dict[str, Any]) -> Iterator[str]:
    if transport.get("uds") is None:
        yield _required("uds", "UDS must be set with GRPC")
    else:
        yield from _uds(transport["uds"])


def _http_connect(transport: dict[str, Any], exists: Callable[[str], bool]) -> Iterator[str]:
    tcp, uds = transport.get("tcp"), transport.get("uds")
    if tcp is not None and uds is not None:
        yield _invalid("tcp", str(tcp.get("url") or ""), "TCP and UDS cannot both be set")
    elif tcp is not None:
        yield from _tcp(tcp, exists)
    elif uds is not None:
        yield from _uds(uds)
    else:
        yield _required("tcp", "One of TCP or UDS must be set")


def _uds(uds: dict[str, Any]) -> Iterator[str]:
    if not uds.get("udsName"):
        yield _invalid("udsName", "nil", "must be present for UDS connections")


def _tcp(tcp: dict[str, Any], exists: Callable[[str], bool]) -> Iterator[str]:
    url, tls = tcp.get("url") or "", tcp.get("tlsConfig")
    if url.startswith("http://"):
        if tls is not None:
            yield _invalid("tlsConfig", "nil", "config must not be present when using HTTP")
        else:
            # The kube-apiserver accepts it and then exits, because it always dials TLS.
            yield _invalid("url", url, "the kube-apiserver always dials TLS: use https:// or a unix socket")
    elif not url.startswith("https://"):
        yield _invalid("url", url, "supported connection protocols are http:// and https://")
    elif tls is None:
        yield _required("tlsConfig", "TLSConfig must be present when using HTTPS")
    else:
        yield from _tls(tls, exists)


def _tls(tls: dict[str, Any], exists: Callable[[str], bool]) -> Iterator[str]:
    bundle = tls.get("caBundle") or ""
    if bundle and not exists(bundle):
        yield _invalid("tlsConfig.caBundle", bundle, "TLS config ca bundle does not exist")
    for field, empty, missing in (
        ("clientCert", "Using TLS requires clientCert", "TLS client cert does not exist"),
        ("clientKey", "Using TLS requires requires clientKey", "TLS client key does not exist"),
    ):
        path = tls.get(field) or ""
        if not path:
            yield _invalid(f"tlsConfig.{field}", "nil", empty)
        elif not exists(path):
            yield _invalid(f"tlsConfig.{field}", path, missing)


def _required(field: str, detail: str) -> str:
    return f"{_CONNECTION}.{field}: Required value: {detail}"


def _invalid(field: str, value: str, detail: str) -> str:
    return f'{_CONNECTION}.{field}: Invalid value: "{value}": {detail}'


def _not_supported(value: str, known: tuple[str, ...]) -> str:
    listed = ", ".join(f'"{name}"' for name in known)
    return f'Unsupported value: "{value}": supported values: {listed}'
