"""Where a cluster is in its cloud: the settings of install-config's `platform` that a firewall rule needs.

Without them, a cloud's CLI uses its own defaults, or the cloud is asked. The plan record keeps what was used,
so that a removal finds the rule where it was created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from bootbridge.errors import OperatorError

# A value becomes a word of a command: it must not look like a flag or like one of our placeholders.
_VALUE = re.compile(r"\w[\w .:()/-]*")
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:[.-][\w.+-]*)?")


@dataclass(frozen=True)
class CloudSettings:
    """Holds what install-config says; empty: not given."""

    region: str = ""  # AWS; IBM Cloud and PowerVS: of the VPC
    project: str = ""  # GCP: of the machines
    network_project: str = ""  # GCP: of a shared VPC
    network: str = ""  # GCP: an existing VPC
    resource_group: str = ""  # Azure, IBM Cloud: of the cluster
    cloud_name: str = ""  # Azure: environment; OpenStack: entry of clouds.yaml
    firewall_owner: str = ""  # the setting by which the operator, not the installer, manages the firewall
    release: str = ""  # of OpenShift: it decides the names of the installer's groups

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value and not _VALUE.fullmatch(value):
                hint = "letters, digits, and . _ : ( ) / - after the first character"
                raise OperatorError(f"invalid value {value!r}", subject=f"platform: {field.name}", hint=hint)
        if self.release and not _RELEASE.fullmatch(self.release):
            text = f"invalid release {self.release!r}"
            raise OperatorError(text, subject="--release", hint="for example 4.18 or 4.18.3")

    @property
    def minor_release(self) -> tuple[int, int] | None:
        """Returns the release as (4, 18), or None if it is not known."""
        found = _RELEASE.fullmatch(self.release)
        return (int(found[1]), int(found[2])) if found else None


# Our field: the installer's field below platform.<name>.
_FIELDS: dict[str, dict[str, str]] = {
    "aws": {"region": "region"},
    "azure": {"resource_group": "resourceGroupName", "cloud_name": "cloudName"},
    "gcp": {"project": "projectID", "network_project": "networkProjectID", "network": "network"},
    "ibmcloud": {"region": "region", "resource_group": "resourceGroupName"},
    "openstack": {"cloud_name": "cloud"},
    "powervs": {"region": "vpcRegion"},
}
# Settings by which the installer leaves the firewall to the operator. The second is the name that an earlier
# technology preview of the installer had.
_OPERATOR_MANAGED = {
    "gcp": (("firewallRulesManagement", "Unmanaged"), ("createFirewallRules", "Disabled")),
}


def read_settings(platform: str, section: object) -> CloudSettings:
    """Returns the settings of `platform.<platform>` in an install-config. Raises OperatorError."""
    given: Mapping[str, Any] = section if isinstance(section, dict) else {}
    found = {}
    for ours, theirs in _FIELDS.get(platform, {}).items():
        value = given.get(theirs, "")
        if not isinstance(value, str) or (value and not _VALUE.fullmatch(value)):
            raise OperatorError(f"invalid value {value!r}", subject=f"platform.{platform}.{theirs}")
        found[ours] = value
    for field, value in _OPERATOR_MANAGED.get(platform, ()):
        if given.get(field) == value:
            found["firewall_owner"] = f"platform.{platform}.{field}: {value}"
    return CloudSettings(**found)
