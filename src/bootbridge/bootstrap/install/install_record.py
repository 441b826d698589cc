"""What `up` noted down before it did it: all that `down` could not know from the plan alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset
from bootbridge.common.host import Host

VERSION = 1


@dataclass(frozen=True)
class InstallRecord:
    """Noted ahead of the deed: what is noted may be missing, what is not noted was never done."""

    directories: tuple[str, ...] = ()  # made by us where others keep their files; removed if empty
    cluster: bool = False  # objects were sent to the API
    firewall: bool = False  # the rule is ours to remove
    kubeconfig: str = ""  # given with --kubeconfig; empty: the plan's

    def with_directories(self, more: list[str]) -> InstallRecord:
        return replace(self, directories=tuple(dict.fromkeys((*self.directories, *more))))

    def dump(self) -> Asset:
        document = {
            "version": VERSION,
            "directories": list(self.directories),
            "cluster": self.cluster,
            "firewall": self.firewall,
            "kubeconfig": self.kubeconfig,
        }
        return Asset((json.dumps(document, indent=2) + "\n").encode())


def path(plan: Plan) -> str:
    return f"{plan.paths.state}/install-record.json"


def load(host: Host, plan: Plan) -> InstallRecord | None:
    """The note, or None when there is none that can be read: a half-written one is never seen."""
    try:
        document = json.loads(host.read(path(plan)) or b"")
        return InstallRecord(
            tuple(map(str, document["directories"])),
            bool(document["cluster"]),
            bool(document["firewall"]),
            str(document["kubeconfig"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
