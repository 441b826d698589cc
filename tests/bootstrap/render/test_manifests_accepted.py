"""Sends every manifest, in every variant, to a real kube-apiserver as a strict dry run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.plan.plan import Flavour, Plan, Protocol
from bootbridge.bootstrap.render import egress_selector, manifests
from tests.bootstrap.render.manifest_variants import ALL, IMAGES, Variant
from tests.bootstrap.render.test_egress_selector import RULES
from tests.support.kubernetes import ControlPlane

pytest_plugins = ["tests.support.kubernetes"]
pytestmark = pytest.mark.kubernetes

DRY_RUN = "dryRun=All&fieldValidation=Strict"
COLLECTIONS = {
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Namespace": "/api/v1/namespaces",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
}


def collection(manifest: dict[str, Any]) -> str:
    return COLLECTIONS[manifest["kind"]].format(namespace=manifest["metadata"].get("namespace"))


@pytest.fixture(scope="module", autouse=True)
def namespaces(kubernetes: ControlPlane) -> None:
    """Creates the tunnel's namespaces, which a dry run requires."""
    for variant in ALL:
        status, _ = kubernetes.api.call("POST", "/api/v1/namespaces", manifests.namespace(variant.plan))
        assert status in (201, 409)
    kubernetes.service_account("kube-system", "default")


@pytest.mark.parametrize("variant", ALL, ids=str)
def test_the_kube_apiserver_accepts_every_manifest(kubernetes: ControlPlane, variant: Variant) -> None:
    """No unknown field, no wrong type, no invalid value."""
    for manifest in variant.objects:
        as_read = yaml.safe_load(manifests.to_yaml(manifest))
        if manifest["kind"] == "Namespace":
            # It exists already, and a dry run rejects a second one of that name.
            as_read["metadata"]["name"] += "-again"
        status, answer = kubernetes.api.call("POST", f"{collection(manifest)}?{DRY_RUN}", as_read)
        assert status == 201, f"{manifest['kind']}: {answer.get('message')}"


def test_an_unknown_field_is_rejected(kubernetes: ControlPlane) -> None:
    """Proves that the test above can fail."""
    pod = ALL[0].objects[0]
    pod["spec"]["hostNetwerk"] = True
    status, answer = kubernetes.api.call("POST", f"{collection(pod)}?{DRY_RUN}", pod)
    assert status == 400
    assert "hostNetwerk" in answer["message"]


@pytest.mark.parametrize("host_network", [False, True], ids=["pod-network", "host-network"])
@pytest.mark.parametrize("flavour", Flavour)
def test_agents_pass_pod_security_admission(
    kubernetes: ControlPlane, flavour: Flavour, host_network: bool
) -> None:
    """Creates the template as a pod, in a namespace with our labels."""
    plan = Plan(flavour=flavour, image=IMAGES[1], host_network=host_network)
    variant = Variant(plan)
    labelled = manifests.namespace(plan)
    labelled["metadata"]["name"] = name = f"pods-of-{flavour}-{'host' if host_network else 'pod'}"
    kubernetes.api.create("/api/v1/namespaces", labelled)
    kubernetes.service_account(name, "default")
    template = variant.objects[-1]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**template["metadata"], "name": "agent"}
    status, answer = kubernetes.api.call("POST", f"/api/v1/namespaces/{name}/pods?{DRY_RUN}", pod)
    assert status == 201, answer.get("message")
    pod["spec"] = {**pod["spec"], "hostPID": True}
    status, _ = kubernetes.api.call("POST", f"/api/v1/namespaces/{name}/pods?{DRY_RUN}", pod)
    assert status == (201 if host_network else 403), "the namespace enforces its level"


@pytest.fixture
def restarted(kubernetes: ControlPlane) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Restarts the kube-apiserver with an egress selector, and afterwards without one."""
    kubernetes.stop_apiserver()

    def start(document: dict[str, Any]) -> None:
        file = kubernetes.folder / "egress-selector.yaml"
        file.write_bytes(manifests.to_yaml(document))
        kubernetes.start(egress_selector_config_file=file)

    yield start
    kubernetes.stop_apiserver()
    kubernetes.start()


@pytest.mark.parametrize("protocol", Protocol)
def test_a_kube_apiserver_starts_with_the_egress_selector(
    restarted: Callable[[dict[str, Any]], None], protocol: Protocol
) -> None:
    """It decodes the file strictly, and exits on any error."""
    restarted(egress_selector.configuration(Plan(protocol=protocol)))


def test_the_kube_apiserver_logs_the_errors_of_validate(
    kubernetes: ControlPlane, restarted: Callable[[dict[str, Any]], None]
) -> None:
    """The same errors in the same order and with the same texts."""
    there = str(kubernetes.folder / "ca.crt")
    document = yaml.safe_load(manifests.to_yaml(faulty_configuration()).replace(b"/there", there.encode()))
    expected = [problem.partition(": ")[2] for problem in egress_selector.validate(document)]
    assert len(expected) > len(FAULTS)
    with pytest.raises(AssertionError, match="kube-apiserver"):
        restarted(document)
    log = kubernetes.log().replace('\\"', '"')
    assert f"failed to validate egress selector configuration: [{', '.join(expected)}]" in log


# Left out: decoding errors, because decoding stops at the first one; TCP and UDS together, which Go prints as
# a struct; and errors on which the kube-apiserver exits without a message.
UNANNOUNCED = (
    "an unknown field",
    "a value of another type",
    "HTTPConnect over TCP and a socket",
    "http, which",
)
FAULTS = [rule for rule in RULES if not rule.startswith(UNANNOUNCED)]


def faulty_configuration() -> dict[str, Any]:
    """Returns a file with all errors."""
    return {
        "apiVersion": egress_selector.API_VERSIONS[-1],
        "kind": egress_selector.KIND,
        "egressSelections": [RULES[rule][0] for rule in FAULTS],
    }
