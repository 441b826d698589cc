"""The receipt of a removal: what was found, what was removed, what remains, and warnings.

One JSON document, version 1, written atomically by `bootbridge down` and by the clean-up function of the
generated shell script:

    {
      "version": 1,
      "writtenAt": "2026-01-31T12:00:00Z",            UTC, RFC 3339, whole seconds
      "writtenBy": "bootbridge down",                 or "bootbridge_cleanup"
      "plan": {"flavour": "kubeadm", "platform": "none", "infraID": "", "namespace": "…",
               "agentPort": 8091, "recorded": true},  recorded: from the plan record, else default names
      "clean": true,                                  nothing remains
      "found":    [{"resource": "secret", "name": "Secret bootstrap-konnectivity/konnectivity-agent-certs"}],
      "removed":  [{"resource": "secret", "name": "…"}],  in the order of removal
      "remains":  [{"resource": "namespace", "name": "Namespace …", "reason": "…"}],
      "warnings": ["one sentence each"]
    }

`resource` is one of RESOURCE_NAMES; `what` is `Kind namespace/name`, `Kind name` or an absolute path.
A receipt holds no secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bootbridge.bootstrap.plan.plan import Plan

VERSION = 1
# In the order of removal.
RESOURCE_NAMES = (
    "daemonset",
    "apiserver-address",
    "role-binding",
    "role",
    "secret",
    "namespace",
    "apiserver",
    "static-pod",
    "socket",
    "certificates",
    "egress-config",
    "firewall",
    "record",
)


@dataclass(frozen=True)
class ReceiptItem:
    """One thing that was found; `reason` is set only if it remains."""

    resource: str
    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.reason else self.name

    def document(self) -> dict[str, str]:
        return {
            "resource": self.resource,
            "name": self.name,
            **({"reason": self.reason} if self.reason else {}),
        }


@dataclass(frozen=True)
class Receipt:
    plan: Plan
    recorded: bool
    written_at: datetime
    found: tuple[ReceiptItem, ...] = ()
    removed: tuple[ReceiptItem, ...] = ()
    remains: tuple[ReceiptItem, ...] = ()
    warnings: tuple[str, ...] = ()
    written_by: str = "bootbridge down"

    @property
    def clean(self) -> bool:
        return not self.remains

    def document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "writtenAt": self.written_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "writtenBy": self.written_by,
            "plan": summary(self.plan, self.recorded),
            "clean": self.clean,
            "found": _documents(self.found),
            "removed": _documents(self.removed),
            "remains": _documents(self.remains),
            "warnings": list(self.warnings),
        }

    def dump(self) -> bytes:
        return (json.dumps(self.document(), indent=2, ensure_ascii=False) + "\n").encode()

    def sentence(self) -> str:
        if not self.found and self.clean:
            return "Nothing was installed, and nothing remains."
        removed = f"{len(self.removed)} of {len(self.found)} removed"
        return f"{removed}, nothing remains." if self.clean else f"{removed}, {len(self.remains)} remain."


def summary(plan: Plan, recorded: bool) -> dict[str, Any]:
    """Returns the fields of the plan that identify the installation."""
    return {
        "flavour": plan.flavour,
        "platform": plan.platform,
        "infraID": plan.infra_id,
        "namespace": plan.namespace,
        "agentPort": plan.ports.agent,
        "recorded": recorded,
    }


def _documents(items: Iterable[ReceiptItem]) -> list[dict[str, str]]:
    return [item.document() for item in items]
