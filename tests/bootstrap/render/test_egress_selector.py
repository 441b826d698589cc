"""Renders the egress selector, and checks each of the kube-apiserver's validation rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.bootstrap.plan.plan import Flavour, Plan, Protocol, ProxyImage
from bootbridge.bootstrap.render import egress_selector

PLANS = [
    Plan(flavour=flavour, protocol=protocol, image=ProxyImage("bootbridge", "registry.example/b:1"))
    for flavour in Flavour
    for protocol in Protocol
]


def config(*selections: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": list(selections),
    }


def cluster(protocol: str, transport: object = None, **more: object) -> dict[str, Any]:
    connection = {"proxyProtocol": protocol, **({} if transport is None else {"transport": transport})}
    return {"name": "cluster", "connection": connection, **more}


def https(**tls: str) -> dict[str, Any]:
    return cluster("HTTPConnect", {"tcp": {"url": "https://proxy:8131", "tlsConfig": tls}})


def problems(document: object) -> list[str]:
    """Validates with a file system that contains only /there."""
    return egress_selector.validate(document, exists=lambda path: path == "/there")


# --- rendering


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.flavour}-{plan.protocol}")
def test_the_rendered_configuration_is_valid(plan: Plan) -> None:
    assert problems(egress_selector.configuration(plan)) == []


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.flavour}-{plan.protocol}")
def test_only_calls_to_the_cluster_use_the_tunnel(plan: Plan) -> None:
    """etcd and the control plane are dialled directly."""
    cluster, controlplane, etcd = egress_selector.configuration(plan)["egressSelections"]
    assert cluster == {
        "name": "cluster",
        "connection": {
            "proxyProtocol": str(plan.protocol),
            "transport": {"uds": {"udsName": plan.paths.socket_seen_by_apiserver}},
        },
    }
    direct = {"proxyProtocol": "Direct"}
    assert controlplane == {"name": "controlplane", "connection": direct}
    assert etcd == {"name": "etcd", "connection": direct}


def test_the_override_sets_the_flag() -> None:
    """KubeAPIServerConfig has no field for it, and ignores unknown ones."""
    assert egress_selector.config_override(Plan()) == {
        "apiVersion": "kubecontrolplane.config.openshift.io/v1",
        "kind": "KubeAPIServerConfig",
        "apiServerArguments": {
            "egress-selector-config-file": ["/etc/kubernetes/config/bootbridge-egress-selector.yaml"]
        },
    }


# --- the kube-apiserver's rules

RULES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown protocol": (
        cluster("CONNECT"),
        'service.connection.protocol: Unsupported value: "CONNECT": '
        'supported values: "Direct", "HTTPConnect", "GRPC"',
    ),
    "direct with a transport": (
        cluster("Direct", {"uds": {"udsName": "/s"}}),
        'service.connection.transport: Invalid value: "direct": config must be absent for direct connect',
    ),
    "HTTPConnect without a transport": (
        cluster("HTTPConnect"),
        "service.connection.transport: Required value: transport must be set for HTTPConnect",
    ),
    "GRPC without a transport": (
        cluster("GRPC"),
        "service.connection.transport: Required value: transport must be set for GRPC",
    ),
    "HTTPConnect over TCP and a socket": (
        cluster("HTTPConnect", {"tcp": {"url": "https://p"}, "uds": {"udsName": "/s"}}),
        "TCP and UDS cannot both be set",
    ),
    "HTTPConnect over neither": (
        cluster("HTTPConnect", {}),
        "service.connection.tcp: Required value: One of TCP or UDS must be set",
    ),
    "GRPC without a socket": (
        cluster("GRPC", {"tcp": {"url": "https://p"}}),
        "service.connection.uds: Required value: UDS must be set with GRPC",
    ),
    "a socket without a name": (
        cluster("GRPC", {"uds": {"udsName": ""}}),
        'service.connection.udsName: Invalid value: "nil": must be present for UDS connections',
    ),
    "http with TLS": (
        cluster("HTTPConnect", {"tcp": {"url": "http://p", "tlsConfig": {}}}),
        "config must not be present when using HTTP",
    ),
    "http, which it accepts and then trips over": (
        cluster("HTTPConnect", {"tcp": {"url": "http://p"}}),
        "the kube-apiserver always dials TLS",
    ),
    "another scheme": (
        cluster("HTTPConnect", {"tcp": {"url": "ftp://p"}}),
        'service.connection.url: Invalid value: "ftp://p": '
        "supported connection protocols are http:// and https://",
    ),
    "https without TLS": (
        cluster("HTTPConnect", {"tcp": {"url": "https://p"}}),
        "service.connection.tlsConfig: Required value: TLSConfig must be present when using HTTPS",
    ),
    "a CA bundle that is not there": (
        https(caBundle="/gone", clientCert="/there", clientKey="/there"),
        'service.connection.tlsConfig.caBundle: Invalid value: "/gone": TLS config ca bundle does not exist',
    ),
    "no client certificate": (https(clientKey="/there"), "Using TLS requires clientCert"),
    "a client certificate that is not there": (
        https(clientCert="/gone", clientKey="/there"),
        'service.connection.tlsConfig.clientCert: Invalid value: "/gone": TLS client cert does not exist',
    ),
    "no client key": (https(clientCert="/there"), "Using TLS requires requires clientKey"),
    "a client key that is not there": (
        https(clientCert="/there", clientKey="/gone"),
        'service.connection.tlsConfig.clientKey: Invalid value: "/gone": TLS client key does not exist',
    ),
    "an unknown name": (
        {"name": "webhooks", "connection": {"proxyProtocol": "Direct"}},
        'Unsupported value: "webhooks": supported values: "cluster", "controlplane", "etcd"',
    ),
    "an unknown field": (
        cluster("GRPC", {"type": "TCP", "uds": {"udsName": "/s"}}),
        'strict decoding error: unknown field "egressSelections[0].connection.transport.type"',
    ),
    "a value of another type": (
        cluster("GRPC", {"uds": {"udsName": 7}}),
        "egressSelections[0].connection.transport.uds.udsName: invalid type: string required, not 7",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_validation_rules(rule: str) -> None:
    """With the kube-apiserver's texts."""
    selection, text = RULES[rule]
    (problem,) = problems(config(selection))
    assert text in problem
    assert "egressSelections[0]" in problem


ACCEPTED: dict[str, list[dict[str, Any]]] = {
    "nothing selected": [],
    "names in any case": [{"name": "Etcd", "connection": {"proxyProtocol": "Direct"}}],
    "the old name of the control plane": [{"name": "master", "connection": {"proxyProtocol": "Direct"}}],
    "GRPC with TCP beside the socket": [
        cluster("GRPC", {"uds": {"udsName": "/s"}, "tcp": {"url": "https://p"}})
    ],
    "https without a CA bundle": [https(clientCert="/there", clientKey="/there")],
    "https with one": [https(caBundle="/there", clientCert="/there", clientKey="/there")],
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_valid_configurations(case: str) -> None:
    """Not stricter than the kube-apiserver."""
    assert problems(config(*ACCEPTED[case])) == []


@pytest.mark.parametrize(("first", "second"), [("cluster", "Cluster"), ("master", "controlplane")])
def test_a_duplicate_name_in_another_spelling(first: str, second: str) -> None:
    """The error has the second one."""
    direct = {"proxyProtocol": "Direct"}
    document = config({"name": first, "connection": direct}, {"name": second, "connection": direct})
    (problem,) = problems(document)
    assert problem.startswith("egressSelections[1]")
    assert "Duplicate value" in problem


def test_the_old_name_is_case_sensitive() -> None:
    """The kube-apiserver knows `master`, but not `Master`."""
    (problem,) = problems(config({"name": "Master", "connection": {"proxyProtocol": "Direct"}}))
    assert "Unsupported value" in problem


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"kind": "EgressSelectorConfiguration"},
        {"kind": "EgressSelectorConfiguration", "apiVersion": "apiserver.config.k8s.io/v1"},
        {"kind": "Pod", "apiVersion": "apiserver.k8s.io/v1beta1"},
    ],
)
def test_another_kind_or_version(document: object) -> None:
    """The kind is not part of apiserver.config.k8s.io/v1."""
    assert len(problems(document)) == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "GRPC", "Direct", "/s", "cluster"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "connection", "proxyProtocol", "transport", "tcp", "uds", "url", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(values)
def test_fuzzed_selections(selections: object) -> None:
    """Never raises an exception."""
    assert isinstance(problems({**config(), "egressSelections": selections}), list)
