"""The install record: what `up` is about to create and `down` cannot derive from the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.field_names import camel_case
from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError

VERSION = 1


@dataclass(frozen=True)
class InstallRecord:
    """Write-ahead record: an entry may not exist yet, but nothing is created without an entry here."""

    directories: tuple[str, ...] = ()  # created by `up` outside the state directory; removed if empty
    cluster: bool = False  # objects were sent to the API server
    firewall: bool = False  # `up` created the firewall rule
    kubeconfig: str = ""  # from --kubeconfig; empty: the plan's
    cloud: CloudSettings | None = (
        None  # where the firewall rule was created, if more is known than in the plan
    )

    def with_directories(self, more: list[str]) -> InstallRecord:
        return replace(self, directories=tuple(dict.fromkeys((*self.directories, *more))))

    def dump(self) -> Asset:
        document = {
            "version": VERSION,
            "directories": list(self.directories),
            "cluster": self.cluster,
            "firewall": self.firewall,
            "kubeconfig": self.kubeconfig,
            **({"cloud": _cloud_document(self.cloud)} if self.cloud else {}),
        }
        return Asset((json.dumps(document, indent=2) + "\n").encode())


def path(plan: Plan) -> str:
    return f"{plan.paths.state}/install-record.json"


def load(host: Host, plan: Plan) -> InstallRecord | None:
    """Returns the record, or None if it is missing or invalid; writes are atomic."""
    try:
        document = json.loads(host.read(path(plan)) or b"")
        return InstallRecord(
            tuple(map(str, document["directories"])),
            bool(document["cluster"]),
            bool(document["firewall"]),
            str(document["kubeconfig"]),
            _cloud_from(document["cloud"]) if "cloud" in document else None,
        )
    except (ValueError, KeyError, TypeError, OperatorError):
        return None


def _cloud_document(cloud: CloudSettings) -> dict[str, str]:
    return {camel_case(field.name): getattr(cloud, field.name) for field in fields(cloud)}


def _cloud_from(document: Mapping[str, str]) -> CloudSettings:
    return CloudSettings(
        **{field.name: document.get(camel_case(field.name), "") for field in fields(CloudSettings)}
    )
