"""The manifests have the permissions that a ticket needs, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from bootbridge.errors import OperatorError
from bootbridge.join_service.csr_approver import AUTO_APPROVE_BINDING
from bootbridge.join_service.deploy import deploy
from bootbridge.join_service.manifests import JoinServiceDeployment, manifests
from bootbridge.kube.errors import KubeError
from tests.join_service.environment import MEASUREMENT
from tests.support.fake_api_objects import MemoryApi, failing

DEPLOYMENT = JoinServiceDeployment("example.com/bootbridge:1", b'{"evidence": {}}', MEASUREMENT)


def made(kind: str, deployment: JoinServiceDeployment = DEPLOYMENT) -> dict[str, Any]:
    (found,) = (each for each in manifests(deployment) if each["kind"] == kind)
    return found


def pod(deployment: JoinServiceDeployment = DEPLOYMENT) -> dict[str, Any]:
    return dict(made("DaemonSet", deployment)["spec"]["template"]["spec"])


def test_it_runs_on_all_control_planes_on_the_host_network() -> None:
    spec = pod()
    assert spec["hostNetwork"]
    assert spec["nodeSelector"] == {"node-role.kubernetes.io/control-plane": ""}
    assert spec["tolerations"] == [{"operator": "Exists"}]


def test_it_uses_the_api_server_of_its_node() -> None:
    """kube-proxy may not run yet."""
    (container,) = pod()["containers"]
    host, port = container["env"]
    assert host["valueFrom"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
    assert (port["name"], port["value"]) == ("KUBERNETES_SERVICE_PORT", "6443")


def test_it_mounts_the_pki_read_only_without_capabilities() -> None:
    (container,) = pod()["containers"]
    assert container["volumeMounts"] == [
        {"name": "pki", "mountPath": "/etc/kubernetes/pki", "readOnly": True}
    ]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert (security["readOnlyRootFilesystem"], security["privileged"]) == (True, False)


def test_evidence_adds_a_secret_and_devices() -> None:
    deployment = JoinServiceDeployment("i", b"{}", MEASUREMENT, evidence=b'{"tpm": {}}', tpm="/dev/tpmrm0")
    container, helper = pod(deployment)["containers"]
    assert "--evidence=/etc/bootbridge/evidence/issuer.json" in container["args"]
    # The device cgroup denies a mounted device to unprivileged containers.
    assert helper["securityContext"]["privileged"]
    assert helper["args"] == ["--device=/dev/tpmrm0", "--socket=/run/bootbridge-tpm/tpm.sock"]
    assert {"name": "tpm", "mountPath": "/dev/tpmrm0"} in helper["volumeMounts"]
    assert not {mount["name"] for mount in helper["volumeMounts"]} & {"pki", "evidence"}
    # The container on the network has neither.
    assert container["securityContext"] == pod()["containers"][0]["securityContext"]
    assert "/dev/tpmrm0" not in str(container)
    assert {"name": "tpm-socket", "mountPath": "/run/bootbridge-tpm"} in container["volumeMounts"]
    assert len(manifests(deployment)) == len(manifests(DEPLOYMENT)) + 1


def test_secrets_are_not_in_arguments_and_repr() -> None:
    (container,) = pod()["containers"]
    assert MEASUREMENT.secret.hex() not in str(container)
    assert repr(MEASUREMENT.secret) not in repr(DEPLOYMENT)


def permissions(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Returns resource, verb and name of each."""
    return {
        (rule["resources"][0], verb, name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ["*"])
    }


def test_permissions_are_restricted_by_name() -> None:
    """Except `create` of bootstrap tokens, and in the namespace of the name bindings."""
    inside, own = (each for each in manifests(DEPLOYMENT) if each["kind"] == "Role")
    assert (inside["metadata"]["namespace"], own["metadata"]["namespace"]) == (
        "kube-system",
        "bootbridge-join",
    )
    assert permissions(inside) == {
        ("secrets", "create", "*"),
        ("secrets", "get", "bootbridge-measurement"),
        ("configmaps", "list", "bootbridge-join-policy"),
        ("configmaps", "watch", "bootbridge-join-policy"),
    }
    assert permissions(own) == {
        ("configmaps", "create", "*"),
        ("configmaps", "get", "*"),
        ("configmaps", "list", "*"),
        ("configmaps", "watch", "*"),
        ("leases", "create", "*"),
        ("leases", "get", "bootbridge-control-plane-join"),
        ("leases", "update", "bootbridge-control-plane-join"),
    }
    assert permissions(made("ClusterRole")) == {
        ("nodes", "get", "*"),
        ("certificatesigningrequests", "get", "*"),
        ("certificatesigningrequests", "list", "*"),
        ("certificatesigningrequests", "watch", "*"),
        ("certificatesigningrequests/approval", "update", "*"),
        ("signers", "approve", "kubernetes.io/kube-apiserver-client-kubelet"),
        ("clusterrolebindings", "get", "kubeadm:node-autoapprove-bootstrap"),
    }


async def test_deploying_twice_changes_nothing() -> None:
    api = MemoryApi()
    await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
    before = {path: {**body, "metadata": body["metadata"]["name"]} for path, body in api.objects.items()}
    await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
    after = {path: {**body, "metadata": body["metadata"]["name"]} for path, body in api.objects.items()}
    assert before == after
    assert len(before) == len(manifests(DEPLOYMENT))


async def test_kubeadms_auto_approve_binding_is_removed_last() -> None:
    api = MemoryApi()
    api.put(AUTO_APPROVE_BINDING.path, {"metadata": {"name": AUTO_APPROVE_BINDING.name}})
    await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
    assert not api.exists(AUTO_APPROVE_BINDING.path)
    assert [request.method for request in api.calls] == ["PATCH"] * len(manifests(DEPLOYMENT)) + ["DELETE"]


async def test_a_failed_deployment_keeps_kubeadms_binding() -> None:
    api = MemoryApi()
    api.put(AUTO_APPROVE_BINDING.path, {"metadata": {"name": AUTO_APPROVE_BINDING.name}})
    api.faults.append(failing("PATCH", "/daemonsets", KubeError(500, "InternalError", "not now")))
    with pytest.raises(KubeError):
        await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
    assert api.exists(AUTO_APPROVE_BINDING.path)


async def test_a_failed_removal_of_kubeadms_binding_is_raised() -> None:
    api = MemoryApi()
    api.faults.append(failing("DELETE", "/clusterrolebindings", KubeError(403, "Forbidden", "no")))
    with pytest.raises(KubeError):
        await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]


async def test_the_error_names_an_immutable_object() -> None:
    api = MemoryApi()
    api.faults.append(failing("PATCH", "/secrets", KubeError(422, "Invalid", "data: is immutable")))
    with pytest.raises(OperatorError, match="Secret kube-system/bootbridge-measurement: data: is immutable"):
        await deploy(api, DEPLOYMENT)  # type: ignore[arg-type]
