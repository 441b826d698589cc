"""What of the tunnel is there, whether it is as the plan says, and whether it carries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography import x509

from bootbridge.bootstrap.install.resources import Part, Site, parts
from bootbridge.bootstrap.install.resources.resource import Change
from bootbridge.errors import OperatorError

PRESENT, ABSENT, CHANGED, UNKNOWN = "present", "absent", "changed", "unknown"


@dataclass(frozen=True)
class PartStatus:
    name: str
    title: str
    state: str
    detail: str = ""

    @property
    def works(self) -> bool:
        return self.state == PRESENT and not self.detail


@dataclass(frozen=True)
class Status:
    parts: tuple[PartStatus, ...]
    server_healthy: bool
    server_ready: bool
    agents: tuple[str, ...] | None  # None: the server does not say who they are
    certificates_expire: datetime | None

    @property
    def works(self) -> bool:
        return self.server_ready and all(part.works for part in self.parts)

    def document(self) -> dict[str, Any]:
        expire = self.certificates_expire
        return {
            "version": 1,
            "works": self.works,
            "parts": [
                {"part": part.name, "state": part.state, **({"detail": part.detail} if part.detail else {})}
                for part in self.parts
            ],
            "server": {
                "healthy": self.server_healthy,
                "ready": self.server_ready,
                "agents": None if self.agents is None else list(self.agents),
            },
            "certificatesExpireAt": expire and expire.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


def look(site: Site) -> Status:
    """Looks at everything once, waits for nothing."""
    port = site.plan.ports.server_health
    healthy, ready = (site.host.ask(port, page)[0] == 200 for page in ("/healthz", "/readyz"))
    if site.cluster:
        site.cluster.probe()
    return Status(
        tuple(_part_status(part) for part in parts(site) if part.is_laid),
        healthy,
        ready,
        _agents(site),
        _expiry(site),
    )


def _part_status(part: Part) -> PartStatus:
    try:
        if not part.find():
            return PartStatus(part.name, part.title, ABSENT)
        outcome = part.preview()
        if outcome.change is not Change.UNCHANGED:
            return PartStatus(part.name, part.title, CHANGED, outcome.detail or "differs from the plan")
        return PartStatus(part.name, part.title, PRESENT, part.unready())
    except OperatorError as error:
        return PartStatus(part.name, part.title, UNKNOWN, str(error))


def _agents(site: Site) -> tuple[str, ...] | None:
    """Ours says who is connected; the original has no such page."""
    status, body = site.host.ask(site.plan.ports.server_health, "/status")
    if status != 200:
        return None
    try:
        return tuple(sorted(str(agent["id"]) for agent in json.loads(body)["agents"]))
    except (ValueError, KeyError, TypeError):
        return None


def _expiry(site: Site) -> datetime | None:
    bundle = site.bundle()
    if bundle is None:
        return None
    try:
        held = [
            x509.load_pem_x509_certificate(pem) for pem in (bundle.server.cert_pem, bundle.agent.cert_pem)
        ]
    except ValueError:
        return None
    return min(certificate.not_valid_after_utc for certificate in held)
