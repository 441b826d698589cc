"""A real kube-apiserver accepts the chart's objects in a strict dry run, and PodSecurity admits its pods."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm.chart_values import ROWS, Row
from tests.support import helm
from tests.support.kubernetes import ControlPlane

pytest_plugins = ["tests.support.kubernetes"]
pytestmark = [pytest.mark.kubernetes, pytest.mark.helm]

DRY_RUN = "dryRun=All&fieldValidation=Strict"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
COLLECTIONS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "Role": f"{_RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{{}}/rolebindings",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "ServiceMonitor": "/apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors",
}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_SELECTOR = {"type": "object", "properties": {"matchLabels": _LABELS}}
_RELABELING = {
    "type": "object",
    "properties": {
        "sourceLabels": {"type": "array", "items": {"type": "string"}},
        "targetLabel": {"type": "string"},
    },
}
_ENDPOINT = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("port", "path", "interval")},
        "relabelings": {"type": "array", "items": _RELABELING},
    },
}
# The fields of the Prometheus operator's ServiceMonitor that the chart uses, with their types.
SERVICE_MONITORS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"plural": "servicemonitors", "singular": "servicemonitor", "kind": "ServiceMonitor"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["selector", "endpoints"],
                                "properties": {
                                    "selector": _SELECTOR,
                                    "endpoints": {"type": "array", "items": _ENDPOINT},
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module", autouse=True)
def definitions(kubernetes: ControlPlane) -> None:
    """The namespaces of the rows, and the definition of ServiceMonitors."""
    for namespace in (helm.NAMESPACE, "leases"):
        kubernetes.namespace(namespace)
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    kubernetes.api.create(path, SERVICE_MONITORS)
    known = COLLECTIONS["ServiceMonitor"].format(helm.NAMESPACE)
    kubernetes.until(lambda: kubernetes.api.answers(known), "ServiceMonitors are served")


def post(kubernetes: ControlPlane, each: helm.Json) -> tuple[int, helm.Json]:
    path = COLLECTIONS[each["kind"]].format(each["metadata"]["namespace"])
    return kubernetes.api.call("POST", f"{path}?{DRY_RUN}", each)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_kube_apiserver_accepts_every_object(kubernetes: ControlPlane, row: Row) -> None:
    """No unknown field, no wrong type, no invalid value."""
    for name, each in helm.objects(row.values).items():
        status, answer = post(kubernetes, each)
        assert status == 201, f"{name}: {answer.get('message')}"


def test_an_unknown_field_is_rejected(kubernetes: ControlPlane) -> None:
    """Proves that the test above can fail, also for ServiceMonitors."""
    found = helm.objects({"metrics": {"serviceMonitor": {"enabled": True}}})
    for kind in ("DaemonSet", "ServiceMonitor"):
        each = found[f"{kind} tunnel-agent"]
        each["spec"]["selektor"] = {}
        status, answer = post(kubernetes, each)
        assert status == 400
        assert "selektor" in answer["message"]


@pytest.mark.parametrize(
    ("values", "level"),
    [({}, "restricted"), ({"kind": "Deployment"}, "restricted"), ({"hostNetwork": True}, "privileged")],
    ids=["DaemonSet", "Deployment", "host network"],
)
def test_agents_pass_pod_security_admission(
    kubernetes: ControlPlane, values: helm.Json, level: str, request: pytest.FixtureRequest
) -> None:
    """Agents satisfy `restricted`; in the host network only `privileged` admits them."""
    name = f"chart-{request.node.callspec.id.lower().replace(' ', '-')}"
    labels = {"pod-security.kubernetes.io/enforce": level}
    kubernetes.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    kubernetes.service_account(name, "tunnel-agent")
    template = helm.workload(helm.objects(values))["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "agent"}}
    pod["spec"] = template["spec"]
    status, answer = kubernetes.api.call("POST", f"/api/v1/namespaces/{name}/pods?{DRY_RUN}", pod)
    assert status == 201, answer.get("message")


def test_kinds_in_the_table_are_those_of_the_chart() -> None:
    """An object of another kind would not be sent."""
    found = {each["kind"] for row in ROWS for each in helm.objects(row.values).values()}
    assert found == set(COLLECTIONS)
