"""Decides the path of every file that the tunnel puts on a node or reads there."""

from __future__ import annotations

from dataclasses import dataclass


class _Below:
    """Returns the path of a file below another path of the same `Paths`."""

    def __init__(self, directory: str, name: str) -> None:
        self._directory, self._name = directory, name

    def __get__(self, paths: Paths, owner: type[Paths] | None = None) -> str:
        return f"{getattr(paths, self._directory)}/{self._name}"


@dataclass(frozen=True)
class Paths:
    """Holds absolute paths on the bootstrap node. The tunnel owns all of them, with the exceptions named."""

    state: str  # created with the tunnel, removed with it
    static_pods: str  # owned by the kubelet
    cluster_manifests: str  # on kubeadm the objects go straight to the API
    egress_config: str
    egress_config_seen_by_apiserver: str
    socket: str
    socket_seen_by_apiserver: str
    kubeconfig: str  # owned by the installer or kubeadm

    # The functions that bootkube.sh calls, for nodes without Python.
    hook_script = "/usr/local/bin/bootbridge-bootstrap.sh"
    # Cleans up after an abandoned bootstrap. An operator starts it; nothing else does.
    cleanup_unit = "/etc/systemd/system/bootbridge-cleanup.service"
    # Continues a removal that bootkube.sh could not complete. The removal starts it.
    cleanup_retry_unit = "/etc/systemd/system/bootbridge-cleanup-retry.service"
    # Written by bootkube.sh when cluster-bootstrap has succeeded.
    cluster_bootstrap_marker = "/opt/openshift/cb-bootstrap.done"
    # What the removal found, removed and left. Written last, and kept.
    receipt = "/var/log/bootbridge/receipt.json"

    # Not below /opt/openshift/tls, which cluster-bootstrap copies into pods.
    tls = _Below("state", "tls")
    ca_cert = _Below("tls", "ca.crt")
    server_cert = _Below("tls", "server.crt")
    server_key = _Below("tls", "server.key")
    agent_cert = _Below("tls", "agent.crt")
    agent_key = _Below("tls", "agent.key")
    # Address and CA of the kube-apiserver, without credentials: the server checks agents' tokens there.
    apiserver_address = _Below("tls", "apiserver.kubeconfig")
    # The permanent server's own access to the API, for token reviews, leases and the proof of agents' nodes.
    server_kubeconfig = _Below("tls", "server.conf")
    # Manifests with placeholders for values that only the node knows.
    templates = _Below("state", "templates")
    # The optional flags that the image's programs do not know.
    program_flags = _Below("state", "program-flags")
    # The tunnel's egress configuration, while the kube-apiserver dials directly because no server answers.
    bypass = _Below("state", "bypassed-egress-selector.yaml")
    # Sentences for the receipt's warnings.
    notes = _Below("state", "notes")
    namespace_manifest = _Below("cluster_manifests", "bootbridge-namespace.yaml")
    secret_manifest = _Below("cluster_manifests", "bootbridge-agent-secret.yaml")
    role_manifest = _Below("cluster_manifests", "bootbridge-agent-role.yaml")
    role_binding_manifest = _Below("cluster_manifests", "bootbridge-agent-role-binding.yaml")
    daemonset_manifest = _Below("cluster_manifests", "bootbridge-agent-daemonset.yaml")
    server_pod = _Below("static_pods", "konnectivity-server-pod.yaml")
    permanent_server_pod = _Below("static_pods", "bootbridge-server.yaml")
    apiserver_pod = _Below("static_pods", "kube-apiserver.yaml")  # owned by kubeadm
    config_override = _Below("state", "kube-apiserver-config-override.yaml")
    # Written by the operator's render command, for the bootstrap kube-apiserver.
    apiserver_config = _Below("socket_directory", "kube-apiserver-config.yaml")
    # Which of the agents' objects the API server accepted, and why not: one JSON line for each.
    agent_objects = _Below("state", "agent-objects.json")
    # The plan as JSON, from which `down` and `doctor` learn what `up` or `inject` decided.
    plan_record = _Below("state", "plan.json")
    # From this record, `inject --remove` restores the ignition file.
    injection_record = _Below("state", "injected.json")

    @property
    def config_override_seen_by_render(self) -> str:
        """Returns the path in the operator's render container, which mounts /opt/openshift as /assets."""
        return self.config_override.replace("/opt/openshift/", "/assets/", 1)

    @property
    def apiserver_config_seen_by_apiserver(self) -> str:
        """Returns the path in the kube-apiserver's container, which is in its arguments."""
        directory = self.egress_config_seen_by_apiserver.rpartition("/")[0]
        return f"{directory}/{self.apiserver_config.rpartition('/')[2]}"

    @property
    def loopback_kubeconfig(self) -> str:
        """Returns the kubeconfig for the bootstrap kube-apiserver on this node."""
        return f"{self.kubeconfig}-loopback"

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
    # Not cluster-bootstrap's directory: it waits until everything there exists.
    cluster_manifests="/opt/openshift/bootbridge/manifests",
    # The bootstrap kube-apiserver mounts bootstrap-configs, read-only, as /etc/kubernetes/config.
    egress_config="/etc/kubernetes/bootstrap-configs/bootbridge-egress-selector.yaml",
    egress_config_seen_by_apiserver="/etc/kubernetes/config/bootbridge-egress-selector.yaml",
    socket="/etc/kubernetes/bootstrap-configs/konnectivity-server.socket",
    socket_seen_by_apiserver="/etc/kubernetes/config/konnectivity-server.socket",
    kubeconfig="/opt/openshift/auth/kubeconfig",
)
# Not those of `up`, whose removal must leave permanent servers as they are.
PERMANENT_PATHS = Paths(
    state="/etc/kubernetes/bootbridge-server",
    static_pods="/etc/kubernetes/manifests",
    cluster_manifests="",
    egress_config="/etc/kubernetes/bootbridge-server/apiserver/egress-selector.yaml",
    egress_config_seen_by_apiserver="/etc/kubernetes/bootbridge-server/apiserver/egress-selector.yaml",
    socket="/run/bootbridge-server/konnectivity-server.socket",
    socket_seen_by_apiserver="/run/bootbridge-server/konnectivity-server.socket",
    kubeconfig="/etc/kubernetes/admin.conf",
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
