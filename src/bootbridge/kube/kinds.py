"""Kinds of objects that are only looked at: what webhooks point to, and what stands in their way."""

from __future__ import annotations

from bootbridge.kube.objects import Kind

EVENT = Kind("Event", "/api/v1", "events")
NODE = Kind("Node", "/api/v1", "nodes", namespaced=False)
SERVICE = Kind("Service", "/api/v1", "services")
ENDPOINT_SLICE = Kind("EndpointSlice", "/apis/discovery.k8s.io/v1", "endpointslices")
NETWORK_POLICY = Kind("NetworkPolicy", "/apis/networking.k8s.io/v1", "networkpolicies")
VALIDATING_WEBHOOKS = Kind(
    "ValidatingWebhookConfiguration",
    "/apis/admissionregistration.k8s.io/v1",
    "validatingwebhookconfigurations",
    namespaced=False,
)
MUTATING_WEBHOOKS = Kind(
    "MutatingWebhookConfiguration",
    "/apis/admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
API_SERVICE = Kind("APIService", "/apis/apiregistration.k8s.io/v1", "apiservices", namespaced=False)
CUSTOM_RESOURCE = Kind(
    "CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False
)
