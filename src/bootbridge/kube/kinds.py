"""The Kubernetes kinds that Bootbridge reads or writes, each defined once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Where the API server keeps objects of one kind: ``root`` is the path of its API group and version."""

    name: str
    root: str
    plural: str
    namespaced: bool = True


_CORE = "/api/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"

NAMESPACE = Kind("Namespace", _CORE, "namespaces", namespaced=False)
NODE = Kind("Node", _CORE, "nodes", namespaced=False)
POD = Kind("Pod", _CORE, "pods")
SECRET = Kind("Secret", _CORE, "secrets")
CONFIG_MAP = Kind("ConfigMap", _CORE, "configmaps")
SERVICE = Kind("Service", _CORE, "services")
SERVICE_ACCOUNT = Kind("ServiceAccount", _CORE, "serviceaccounts")
EVENT = Kind("Event", _CORE, "events")
DAEMON_SET = Kind("DaemonSet", "/apis/apps/v1", "daemonsets")
LEASE = Kind("Lease", "/apis/coordination.k8s.io/v1", "leases")
CERTIFICATE_REQUEST = Kind(
    "CertificateSigningRequest",
    "/apis/certificates.k8s.io/v1",
    "certificatesigningrequests",
    namespaced=False,
)
ROLE = Kind("Role", _RBAC, "roles")
ROLE_BINDING = Kind("RoleBinding", _RBAC, "rolebindings")
CLUSTER_ROLE = Kind("ClusterRole", _RBAC, "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING = Kind("ClusterRoleBinding", _RBAC, "clusterrolebindings", namespaced=False)
ENDPOINT_SLICE = Kind("EndpointSlice", "/apis/discovery.k8s.io/v1", "endpointslices")
NETWORK_POLICY = Kind("NetworkPolicy", "/apis/networking.k8s.io/v1", "networkpolicies")
VALIDATING_WEBHOOKS = Kind(
    "ValidatingWebhookConfiguration", _ADMISSION, "validatingwebhookconfigurations", namespaced=False
)
MUTATING_WEBHOOKS = Kind(
    "MutatingWebhookConfiguration", _ADMISSION, "mutatingwebhookconfigurations", namespaced=False
)
VALIDATING_POLICY = Kind(
    "ValidatingAdmissionPolicy", _ADMISSION, "validatingadmissionpolicies", namespaced=False
)
VALIDATING_POLICY_BINDING = Kind(
    "ValidatingAdmissionPolicyBinding", _ADMISSION, "validatingadmissionpolicybindings", namespaced=False
)
API_SERVICE = Kind("APIService", "/apis/apiregistration.k8s.io/v1", "apiservices", namespaced=False)
CUSTOM_RESOURCE = Kind(
    "CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False
)

# Of manifests too, so that some kinds are named nowhere else.
BY_NAME = {kind.name: kind for kind in list(globals().values()) if isinstance(kind, Kind)}
