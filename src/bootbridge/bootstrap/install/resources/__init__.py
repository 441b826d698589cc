"""The resources of a tunnel, in one list.

resource       found, applied, waited for, removed (``resource``)
context       where: plan, node, cluster, and notes of what was done (``context``)
host       record, egress configuration, certificates, socket, static pod (``host_parts``)
apiserver  the egress setting in a kube-apiserver's manifest (``apiserver``)
           and in the configuration that kubeadm keeps in the cluster (``kubeadm_config``)
firewall   the cloud's rule, on request (``firewall``)
cluster    namespace, Secret, DaemonSet (``cluster_parts``)

`resources(context)` is the order of creation, its reverse the order of removal: nobody's support goes before
what stands on it.
"""

from __future__ import annotations

from bootbridge.bootstrap.install.context import InstallContext
from bootbridge.bootstrap.install.resources.apiserver import ApiserverSetting
from bootbridge.bootstrap.install.resources.cluster import AgentDaemonSet, AgentSecret, Namespace
from bootbridge.bootstrap.install.resources.firewall import FirewallRule
from bootbridge.bootstrap.install.resources.host import Certificates, EgressConfig, Record, ServerPod, Socket
from bootbridge.bootstrap.install.resources.kubeadm_config import KubeadmConfig
from bootbridge.bootstrap.install.resources.resource import Resource
from bootbridge.bootstrap.plan.plan import Flavour

_ORDER: tuple[type[Resource], ...] = (
    Record,
    FirewallRule,
    EgressConfig,
    Certificates,
    Socket,
    ServerPod,
    ApiserverSetting,
    KubeadmConfig,
    Namespace,
    AgentSecret,
    AgentDaemonSet,
)


def resources(context: InstallContext) -> list[Resource]:
    """In the order of creation."""
    wanted = [make for make in _ORDER if _belongs(make, context)]
    return [make(context) for make in wanted]  # type: ignore[call-arg]


def _belongs(make: type[Resource], context: InstallContext) -> bool:
    if make is FirewallRule:
        return context.firewall or context.record().firewall
    if make in (ApiserverSetting, KubeadmConfig):
        # On an OpenShift bootstrap node the setting is rendered into the kube-apiserver, and goes with it.
        return context.plan.flavour is Flavour.KUBEADM
    return True
