"""What is put into a cluster: as little as does the job."""

from __future__ import annotations

from typing import Any

import pytest

from bootbridge.errors import OperatorError
from bootbridge.join_service.csr_approver import AUTO_APPROVE_BINDING
from bootbridge.join_service.deploy import deploy
from bootbridge.join_service.manifests import JoinServiceDeployment, manifests
from bootbridge.kube.errors import KubeError
from tests.join_service.environment import MEASUREMENT
from tests.join_service.memory_api import MemoryApi, failing

DEPLOYMENT = JoinServiceDeployment("example.com/bootbridge:1", b'{"evidence": {}}', MEASUREMENT)


def made(kind: str, deployment: JoinServiceDeployment = DEPLOYMENT) -> dict[str, Any]:
    (found,) = (each for each in manifests(deployment) if each["kind"] == kind)
    return found


def pod(deployment: JoinServiceDeployment = DEPLOYMENT) -> dict[str, Any]:
    return dict(made("DaemonSet", deployment)["spec"]["template"]["spec"])


def test_it_runs_on_control_planes_on_the_hosts_network_whatever_taints_them() -> None:
    spec = pod()
    assert spec["hostNetwork"]
    assert spec["nodeSelector"] == {"node-role.kubernetes.io/control-plane": ""}
    assert spec["tolerations"] == [{"operator": "Exists"}]


def test_it_asks_the_api_server_of_its_own_node() -> None:
    """There may be no kube-proxy to lead it anywhere."""
    (container,) = pod()["containers"]
    host, port = container["env"]
    assert host["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
    assert (port["name"], port["value"]) == ("KUBERNETES_SERVICE_PORT", "6443")


def test_it_reads_the_clusters_keys_and_can_change_nothing_on_the_node() -> None:
    (container,) = pod()["containers"]
    assert container["volumeMounts"] == [
        {"name": "pki", "mountPath": "/etc/kubernetes/pki", "readOnly": True}
    ]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert (security["readOnlyRootFilesystem"], security["privileged"]) == (True, False)


def test_its_own_evidence_comes_with_a_secret_and_devices() -> None:
    deployment = JoinServiceDeployment(
        "i", b"{}", MEASUREMENT, evidence=b'{"tpm": {}}', devices=("/dev/tpmrm0",)
    )
    (container,) = pod(deployment)["containers"]
    assert "--evidence=/etc/bootbridge/evidence/issuer.json" in container["args"]
    assert {"name": "device-0", "mountPath": "/dev/tpmrm0"} in container["volumeMounts"]
    # The kernel lets no other container open a device that it was merely shown.
    assert container["securityContext"]["privileged"]
    assert len(manifests(deployment)) == len(manifests(DEPLOYMENT)) + 1


def test_no_secret_is_in_an_argument_or_in_repr() -> None:
    (container,) = pod()["containers"]
    assert MEASUREMENT.secret.hex() not in str(container)
    assert repr(MEASUREMENT.secret) not in repr(DEPLOYMENT)


def test_its_rights_name_what_they_are_for() -> None:
    """All but creating, which Kubernetes cannot hold to names, and reading bonds, which are many."""
    rules = made("Role")["rules"] + made("ClusterRole")["rules"]
    assert {
        (rule["resources"][0], verb, *rule.get("resourceNames", ["*"]))
        for rule in rules
        for verb in rule["verbs"]
    } == {
        ("secrets", "create", "*"),
        ("secrets", "get", "bootbridge-measurement"),
        ("configmaps", "create", "*"),
        ("configmaps", "get", "*"),
        ("configmaps", "list", "bootbridge-join-policy"),
        ("configmaps", "watch", "bootbridge-join-policy"),
        ("leases", "create", "*"),
        ("leases", "get", "bootbridge-control-plane-join"),
        ("leases", "update", "bootbridge-control-plane-join"),
        ("nodes", "get", "*"),
        ("certificatesigningrequests", "get", "*"),
        ("certificatesigningrequests", "list", "*"),
        ("certificatesigningrequests", "watch", "*"),
        ("certificatesigningrequests/approval", "update", "*"),
        ("signers", "approve", "kubernetes.io/kube-apiserver-client-kubelet"),
        ("clusterrolebindings", "get", "kubeadm:node-autoapprove-bootstrap"),
    }


async def test_deploying_again_changes_nothing() -> None:
    api = MemoryApi()
    await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
    before = {path: {**body, "metadata": body["metadata"]["name"]} for path, body in api.objects.items()}
    await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
    after = {path: {**body, "metadata": body["metadata"]["name"]} for path, body in api.objects.items()}
    assert before == after
    assert len(before) == len(manifests(DEPLOYMENT))


async def test_kubeadms_approval_of_any_name_is_removed_once_ours_is_in_place() -> None:
    api = MemoryApi()
    api.put(AUTO_APPROVE_BINDING.path, {"metadata": {"name": AUTO_APPROVE_BINDING.name}})
    await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
    assert AUTO_APPROVE_BINDING.path not in api.objects
    assert [request.method for request in api.requests] == ["PATCH"] * len(manifests(DEPLOYMENT)) + ["DELETE"]


async def test_a_join_service_that_cannot_be_deployed_takes_nothing_away() -> None:
    api = MemoryApi()
    api.put(AUTO_APPROVE_BINDING.path, {"metadata": {"name": AUTO_APPROVE_BINDING.name}})
    api.faults.append(failing("PATCH", "/daemonsets", KubeError(500, "InternalError", "not now")))
    with pytest.raises(KubeError):
        await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
    assert AUTO_APPROVE_BINDING.path in api.objects


async def test_a_right_to_remove_it_that_is_missing_is_not_passed_over() -> None:
    api = MemoryApi()
    api.faults.append(failing("DELETE", "/clusterrolebindings", KubeError(403, "Forbidden", "no")))
    with pytest.raises(KubeError):
        await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]


async def test_an_object_that_cannot_be_changed_is_named() -> None:
    api = MemoryApi()
    api.faults.append(failing("PATCH", "/secrets", KubeError(422, "Invalid", "data: is immutable")))
    with pytest.raises(OperatorError, match="Secret kube-system/bootbridge-measurement: data: is immutable"):
        await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
