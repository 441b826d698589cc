"""The resources of the tunnel, in one ordered list.

resource        what each can do: find, preview, apply, wait, remove
host            plan record, egress configuration, certificates, socket, static pod, kube-apiserver's address
apiserver       the egress setting in the kube-apiserver's static pod manifest
kubeadm_config  the same setting in the ClusterConfiguration that kubeadm keeps in the cluster
firewall        the cloud's rule, on request
cluster         namespace, Secret, Role, DaemonSet

`resources(context)` is the order of creation, its reverse the order of removal: a resource is removed before
those on which it depends.
"""

from __future__ import annotations

from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.install.resources.apiserver import ApiserverSetting
from bootbridge.bootstrap.install.resources.cluster import (
    AgentDaemonSet,
    AgentRole,
    AgentRoleBinding,
    AgentSecret,
    Namespace,
)
from bootbridge.bootstrap.install.resources.firewall import FirewallRule
from bootbridge.bootstrap.install.resources.host import (
    ApiserverAddress,
    CertificateFiles,
    EgressConfig,
    PlanRecordFile,
    ServerPod,
    SocketDirectory,
)
from bootbridge.bootstrap.install.resources.kubeadm_config import KubeadmConfig
from bootbridge.bootstrap.install.resources.resource import Resource
from bootbridge.bootstrap.plan.plan import Flavour

ALL: tuple[type[Resource], ...] = (
    PlanRecordFile,
    FirewallRule,
    EgressConfig,
    CertificateFiles,
    SocketDirectory,
    ServerPod,
    ApiserverSetting,
    KubeadmConfig,
    Namespace,
    AgentSecret,
    AgentRole,
    AgentRoleBinding,
    ApiserverAddress,
    AgentDaemonSet,
)


def resources(context: InstallContext) -> list[Resource]:
    """Returns the resources of this installation in the order of creation."""
    wanted = [make for make in ALL if _belongs(make, context)]
    return [make(context) for make in wanted]  # type: ignore[call-arg]


def _belongs(make: type[Resource], context: InstallContext) -> bool:
    if make is FirewallRule:
        return context.firewall or context.record().firewall
    if make in (ApiserverSetting, KubeadmConfig):
        # On an OpenShift bootstrap node the setting is rendered into the kube-apiserver and removed with it.
        return context.plan.flavour is Flavour.KUBEADM
    if make in (AgentRole, AgentRoleBinding, ApiserverAddress):
        return context.plan.proves_nodes
    return True
