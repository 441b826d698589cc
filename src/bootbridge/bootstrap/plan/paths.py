"""Decides the path of every file that the tunnel puts on a node or reads there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paths:
    """Holds absolute paths on the bootstrap node. The tunnel owns all of them, with the exceptions named."""

    state: str  # created with the tunnel, removed with it
    static_pods: str  # owned by the kubelet
    cluster_manifests: str  # owned by cluster-bootstrap; on kubeadm the objects go straight to the API
    egress_config: str
    egress_config_seen_by_apiserver: str
    socket: str
    socket_seen_by_apiserver: str
    kubeconfig: str  # owned by the installer or kubeadm

    # The functions that bootkube.sh calls, for nodes without Python.
    hook_script = "/usr/local/bin/bootbridge-bootstrap.sh"
    # Cleans up after an abandoned bootstrap. An operator starts it; nothing else does.
    cleanup_unit = "/etc/systemd/system/bootbridge-cleanup.service"
    # What the removal found, removed and left. Written last, and kept.
    receipt = "/var/log/bootbridge/receipt.json"

    @property
    def tls(self) -> str:
        """Returns a directory that is not copied into pods, unlike /opt/openshift/tls."""
        return f"{self.state}/tls"

    @property
    def ca_cert(self) -> str:
        return f"{self.tls}/ca.crt"

    @property
    def server_cert(self) -> str:
        return f"{self.tls}/server.crt"

    @property
    def server_key(self) -> str:
        return f"{self.tls}/server.key"

    @property
    def agent_cert(self) -> str:
        return f"{self.tls}/agent.crt"

    @property
    def agent_key(self) -> str:
        return f"{self.tls}/agent.key"

    @property
    def templates(self) -> str:
        """Returns the directory of manifests with placeholders for values that only the node knows."""
        return f"{self.state}/templates"

    @property
    def namespace_manifest(self) -> str:
        return f"{self.cluster_manifests}/bootbridge-namespace.yaml"

    @property
    def secret_manifest(self) -> str:
        return f"{self.cluster_manifests}/bootbridge-agent-secret.yaml"

    @property
    def daemonset_manifest(self) -> str:
        return f"{self.cluster_manifests}/bootbridge-agent-daemonset.yaml"

    @property
    def server_pod(self) -> str:
        return f"{self.static_pods}/konnectivity-server-pod.yaml"

    @property
    def apiserver_pod(self) -> str:
        """Returns kubeadm's static pod manifest."""
        return f"{self.static_pods}/kube-apiserver.yaml"

    @property
    def config_override(self) -> str:
        return f"{self.state}/kube-apiserver-config-override.yaml"

    @property
    def config_override_seen_by_render(self) -> str:
        """Returns the path in the operator's render container, which mounts /opt/openshift as /assets."""
        return self.config_override.replace("/opt/openshift/", "/assets/", 1)

    @property
    def apiserver_config(self) -> str:
        """Returns what the operator's render command wrote for the bootstrap kube-apiserver."""
        return f"{self.socket_directory}/kube-apiserver-config.yaml"

    @property
    def loopback_kubeconfig(self) -> str:
        """Returns the kubeconfig for the bootstrap kube-apiserver on this node."""
        return f"{self.kubeconfig}-loopback"

    @property
    def plan_record(self) -> str:
        """Returns the plan as JSON, from which `down` and `doctor` learn what `up` or `inject` decided."""
        return f"{self.state}/plan.json"

    @property
    def injection_record(self) -> str:
        """Returns the record from which `inject --remove` restores the ignition file."""
        return f"{self.state}/injected.json"

    @property
    def socket_directory(self) -> str:
        return self.socket.rpartition("/")[0]

    def stage_marker(self, stage: str) -> str:
        """Returns the file that says that a stage of bootkube.sh is done."""
        return f"{self.state}/{stage}.done"


OPENSHIFT_PATHS = Paths(
    # A private prefix: from 4.23 on the installer ships files named konnectivity-* even with its tunnel off.
    state="/opt/openshift/bootbridge",
    static_pods="/etc/kubernetes/manifests",
    cluster_manifests="/opt/openshift/manifests",
    # The bootstrap kube-apiserver mounts bootstrap-configs, read-only, as /etc/kubernetes/config.
    egress_config="/etc/kubernetes/bootstrap-configs/bootbridge-egress-selector.yaml",
    egress_config_seen_by_apiserver="/etc/kubernetes/config/bootbridge-egress-selector.yaml",
    socket="/etc/kubernetes/bootstrap-configs/konnectivity-server.socket",
    socket_seen_by_apiserver="/etc/kubernetes/config/konnectivity-server.socket",
    kubeconfig="/opt/openshift/auth/kubeconfig",
)
KUBEADM_PATHS = Paths(
    state="/etc/kubernetes/bootbridge",
    static_pods="/etc/kubernetes/manifests",
    cluster_manifests="",
    egress_config="/etc/kubernetes/bootbridge/apiserver/egress-selector.yaml",
    egress_config_seen_by_apiserver="/etc/kubernetes/bootbridge/apiserver/egress-selector.yaml",
    socket="/run/bootbridge/konnectivity-server.socket",
    socket_seen_by_apiserver="/run/bootbridge/konnectivity-server.socket",
    kubeconfig="/etc/kubernetes/admin.conf",
)
