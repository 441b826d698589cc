"""Deploys the join service into a cluster; idempotent."""

from __future__ import annotations

from bootbridge.errors import OperatorError
from bootbridge.join_service.csr_approver import AUTO_APPROVE_BINDING
from bootbridge.join_service.manifests import JoinServiceDeployment, manifests
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError
from bootbridge.kube.objects import apply_object, ref_of


async def deploy(client: KubeClient, deployment: JoinServiceDeployment) -> None:
    """Applies the manifests; from then on the join service decides which node a bootstrap token may become.

    Raises KubeUnreachable while the API server is unavailable, OperatorError for a permanent refusal.
    """
    for manifest in manifests(deployment):
        try:
            await client.send(apply_object(manifest))
        except KubeError as error:
            if not (error.is_conflict or error.is_invalid):
                raise
            hint = "to change it, delete it first"
            raise OperatorError(error.message, subject=str(ref_of(manifest)), hint=hint) from error
    await _remove_auto_approval(client)


async def _remove_auto_approval(client: KubeClient) -> None:
    """Removes kubeadm's binding that lets any bootstrap token become any node.

    Last, when the join service can approve instead. The first node is not affected: kubeadm signed its client
    certificate itself, and another binding, which stays, approves renewals.
    """
    await client.delete_if_found(AUTO_APPROVE_BINDING)
