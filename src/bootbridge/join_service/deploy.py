"""Puts the join service into a cluster; applied again it changes nothing."""

from __future__ import annotations

from bootbridge.errors import OperatorError
from bootbridge.join_service.csr_approver import AUTO_APPROVE_BINDING
from bootbridge.join_service.manifests import JoinServiceDeployment, manifests
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError
from bootbridge.kube.objects import apply_object, ref_of


async def deploy(client: KubeClient, deployment: JoinServiceDeployment) -> None:
    """The join service's objects; from then on it alone says which node a token may become.

    Raises KubeUnreachable while the API server is away, OperatorError for what it will never take.
    """
    for manifest in manifests(deployment):
        try:
            await client.send(apply_object(manifest))
        except KubeError as error:
            if not (error.is_conflict or error.is_invalid):
                raise
            hint = "if it was meant to change, delete it first"
            raise OperatorError(error.message, subject=str(ref_of(manifest)), hint=hint) from error
    await _take_approval_over(client)


async def _take_approval_over(client: KubeClient) -> None:
    """Removes kubeadm's binding by which any bootstrap token is approved as any node.

    Last, when the join service can approve instead. The first node is not affected: kubeadm has signed its
    client certificate itself, and renewals are approved by another binding, which stays.
    """
    await client.delete_if_found(AUTO_APPROVE_BINDING)
