"""The security context of every container that Bootbridge deploys."""

from __future__ import annotations

from typing import Any, Final

HARDENED: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
