"""Inspects every resource once: whether it exists, matches the plan, and is ready."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography import x509

from bootbridge.bootstrap.install.connected_agents import connected_agents
from bootbridge.bootstrap.install.resources import InstallContext, Resource, resources
from bootbridge.bootstrap.install.resources.resource import ResourceChange
from bootbridge.errors import OperatorError

PRESENT, ABSENT, CHANGED, UNKNOWN = "present", "absent", "changed", "unknown"


@dataclass(frozen=True)
class ResourceStatus:
    name: str
    title: str
    state: str
    detail: str = ""

    @property
    def works(self) -> bool:
        return self.state == PRESENT and not self.detail


@dataclass(frozen=True)
class InstallStatus:
    resources: tuple[ResourceStatus, ...]
    server_healthy: bool
    server_ready: bool
    agents: tuple[str, ...] | None  # None: the server does not list them
    certificates_expire: datetime | None

    @property
    def works(self) -> bool:
        return self.server_ready and all(resource.works for resource in self.resources)

    def document(self) -> dict[str, Any]:
        expire = self.certificates_expire
        return {
            "version": 1,
            "works": self.works,
            "resources": [
                {
                    "resource": resource.name,
                    "state": resource.state,
                    **({"detail": resource.detail} if resource.detail else {}),
                }
                for resource in self.resources
            ],
            "server": {
                "healthy": self.server_healthy,
                "ready": self.server_ready,
                "agents": None if self.agents is None else list(self.agents),
            },
            "certificatesExpireAt": expire and expire.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


def inspect(context: InstallContext) -> InstallStatus:
    """Inspects everything once, without waiting."""
    port = context.plan.ports.server_health
    healthy, ready = (context.host.http_get(port, page)[0] == 200 for page in ("/healthz", "/readyz"))
    if context.cluster:
        context.cluster.probe()
    agents = connected_agents(context.host, context.plan)
    return InstallStatus(
        tuple(_resource_status(resource) for resource in resources(context) if resource.installed_by_up),
        healthy,
        ready,
        None if agents is None else tuple(agents),
        _expiry(context),
    )


def _resource_status(resource: Resource) -> ResourceStatus:
    try:
        if not resource.find():
            return ResourceStatus(resource.name, resource.title, ABSENT)
        applied = resource.preview()
        if applied.change is not ResourceChange.UNCHANGED:
            return ResourceStatus(
                resource.name, resource.title, CHANGED, applied.detail or "differs from the plan"
            )
        return ResourceStatus(resource.name, resource.title, PRESENT, resource.unready_reason())
    except OperatorError as error:
        return ResourceStatus(resource.name, resource.title, UNKNOWN, str(error))


def _expiry(context: InstallContext) -> datetime | None:
    held = context.certificates()
    if held is None:
        return None
    try:
        loaded = [x509.load_pem_x509_certificate(pem) for pem in (held.server.cert_pem, held.agent.cert_pem)]
    except ValueError:
        return None
    return min(certificate.not_valid_after_utc for certificate in loaded)
