"""The destination of a call: an address, or the pod behind a webhook, an APIService or a conversion."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from bootbridge.bootstrap.diagnose.check.result import at
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient
from bootbridge.kube.kinds import (
    API_SERVICE,
    CUSTOM_RESOURCE,
    ENDPOINT_SLICE,
    MUTATING_WEBHOOKS,
    NETWORK_POLICY,
    POD,
    SERVICE,
    VALIDATING_WEBHOOKS,
)
from bootbridge.kube.objects import Ref

Json = dict[str, Any]
HTTPS = 443


@dataclass(frozen=True)
class RequestedDestination:
    """What the operator gave: an address (`to`), or an object that names a service (`webhook`)."""

    to: str = ""
    webhook: str = ""


@dataclass(frozen=True)
class ServiceTarget:
    """The service behind a webhook, and the CA of its certificate."""

    title: str
    namespace: str
    service: str
    port: int = HTTPS
    ca_bundle: bytes = b""

    @property
    def server_name(self) -> str:
        return f"{self.service}.{self.namespace}.svc"


@dataclass(frozen=True)
class Destination:
    """The address that an agent dials."""

    host: str
    port: int
    target: ServiceTarget | None = None
    namespace: str = ""
    pod: str = ""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.address} (pod {self.namespace}/{self.pod})" if self.pod else self.address


def parse(text: str, flag: str) -> tuple[str, int]:
    """`HOST:PORT`; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        hint = "write it like 10.128.0.7:8443 or [fd01::7]:8443"
        raise OperatorError(f"invalid HOST:PORT {text!r}", subject=flag, hint=hint)
    if ":" in host:
        try:
            ip_address(host)
        except ValueError:
            hint = "write it like [fd01::7]:8443"
            raise OperatorError(f"invalid HOST:PORT {text!r}", subject=flag, hint=hint) from None
    return host, int(port)


# --- from a name to a service


def find_service_target(cluster: ClusterClient, name: str) -> ServiceTarget | str:
    """Returns the target of that name; a text if it exists but is not called through the tunnel."""
    found = list(dict.fromkeys(_targets(cluster, name)))
    if not found:
        hint = "the name of a webhook or its configuration, of an APIService, or of a CRD with conversion"
        raise OperatorError(f"not found in the cluster: {name!r}", subject="--webhook", hint=hint)
    services = {
        (each.namespace, each.service, each.port) for each in found if isinstance(each, ServiceTarget)
    }
    if len(services) > 1:
        titles = ", ".join(str(getattr(each, "title", each)) for each in found)
        raise OperatorError(f"{name!r} is ambiguous: {titles}", subject="--webhook", hint="name one of them")
    return found[0]


def _targets(cluster: ClusterClient, name: str) -> Iterator[ServiceTarget | str]:
    for kind in (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS):
        for configuration in cluster.list(kind):
            is_named = configuration["metadata"]["name"] == name
            for webhook in configuration.get("webhooks") or ():
                if is_named or webhook.get("name") == name:
                    yield _of_client_config(str(webhook.get("name")), webhook.get("clientConfig") or {})
    if found := cluster.get(Ref(CUSTOM_RESOURCE, name)):
        given = at(dict(found), "spec", "conversion", "webhook", "clientConfig")
        yield (
            _of_client_config(f"conversion of {name}", given)
            if given
            else f"{name} has no conversion webhook"
        )
    if found := cluster.get(Ref(API_SERVICE, name)):
        spec = found.get("spec") or {}
        service = spec.get("service")
        yield (
            _target(name, service, spec.get("caBundle"))
            if service
            else f"{name} is served by the kube-apiserver itself"
        )


def _of_client_config(title: str, given: Json) -> ServiceTarget | str:
    service = given.get("service")
    if service:
        return _target(title, service, given.get("caBundle"))
    return f"{title} is called by its URL, which does not go through the tunnel"


def _target(title: str, service: Json, ca_bundle: str | None) -> ServiceTarget:
    try:
        ca = base64.b64decode(ca_bundle or "")
    except binascii.Error:
        ca = b"not base64"
    return ServiceTarget(title, service["namespace"], service["name"], service.get("port") or HTTPS, ca)


# --- from a service to a pod


def pod_of(cluster: ClusterClient, target: ServiceTarget) -> Destination | str:
    """Returns the pod that the kube-apiserver would call; a text if none is ready."""
    service = cluster.get(Ref(SERVICE, target.service, target.namespace))
    if service is None:
        return f"Service {target.namespace}/{target.service} does not exist"
    ports = at(dict(service), "spec", "ports") or []
    port = next((each for each in ports if each.get("port") == target.port), None)
    if port is None:
        return f"Service {target.namespace}/{target.service} has no port {target.port}"
    slices = cluster.list(ENDPOINT_SLICE, target.namespace, f"kubernetes.io/service-name={target.service}")
    for each in slices:
        number = _port_in(each, port.get("name") or "")
        for endpoint in each.get("endpoints") or ():
            if number and at(endpoint, "conditions", "ready") is not False and endpoint.get("addresses"):
                pod = at(endpoint, "targetRef", "name") or ""
                return Destination(endpoint["addresses"][0], number, target, target.namespace, pod)
    return _none_ready(cluster, target, dict(service))


def _port_in(endpoint_slice: Json, name: str) -> int:
    ports = endpoint_slice.get("ports") or ()
    return next(
        (int(each["port"]) for each in ports if (each.get("name") or "") == name and each.get("port")), 0
    )


def _none_ready(cluster: ClusterClient, target: ServiceTarget, service: Json) -> str:
    text = f"no pod behind Service {target.namespace}/{target.service} is ready"
    wanted = at(service, "spec", "selector")
    if not wanted:
        return text
    pods = cluster.list(POD, target.namespace, ",".join(f"{key}={value}" for key, value in wanted.items()))
    if not pods:
        return f"{text}: it selects no pod"
    return f"{text}: " + "; ".join(f"{pod['metadata']['name']} {why_not_ready(pod)}" for pod in pods[:3])


def why_not_ready(pod: Json) -> str:
    """Returns a short reason why a pod is not ready; empty if it is."""
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = at(each, "state", "waiting")
        if waiting and waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return f"{waiting['reason']}: {waiting.get('message') or 'no message'}"[:300]
        ended = at(each, "state", "terminated")
        if ended and ended.get("exitCode"):
            return f"exited with {ended['exitCode']} ({ended.get('reason')})"
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    if at(conditions, "Ready", "status") == "True":
        return ""
    unscheduled = conditions.get("PodScheduled") or {}
    if unscheduled.get("status") == "False":
        return f"is not scheduled: {unscheduled.get('message') or unscheduled.get('reason')}"[:300]
    return f"is {status.get('phase') or 'Pending'}, not ready"


# --- network policies


def policies_on(cluster: ClusterClient, destination: Destination) -> list[str]:
    """Returns the ingress NetworkPolicies that select this pod."""
    pod = _pod_at(cluster, destination)
    if pod is None:
        return []
    namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
    return [
        f"{namespace}/{policy['metadata']['name']}"
        for policy in cluster.list(NETWORK_POLICY, namespace)
        if "Ingress" in (at(policy, "spec", "policyTypes") or ["Ingress"])
        and _selects(at(policy, "spec", "podSelector") or {}, labels)
    ]


def _pod_at(cluster: ClusterClient, destination: Destination) -> Json | None:
    if destination.pod:
        found = cluster.get(Ref(POD, destination.pod, destination.namespace))
        return dict(found) if found else None
    pods = cluster.list(POD)
    return next((pod for pod in pods if at(pod, "status", "podIP") == destination.host), None)


def _selects(selector: Json, labels: Json) -> bool:
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_holds(each, labels) for each in selector.get("matchExpressions") or ())


def _holds(expression: Json, labels: Json) -> bool:
    key, values = str(expression.get("key")), expression.get("values") or ()
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }.get(str(expression.get("operator")), False)
