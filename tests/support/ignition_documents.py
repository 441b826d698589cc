"""Small ignition files in the installer's format, in several JSON formattings."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from tests.support.bootkube_scripts import script

BOOTKUBE = "/usr/local/bin/bootkube.sh"
INSTALL_CONFIG = """\
apiVersion: v1
baseDomain: example.com
metadata:
  name: test
networking:
  networkType: OVNKubernetes
  clusterNetwork:
  - cidr: 10.132.0.0/14
    hostPrefix: 24
  serviceNetwork:
  - 172.31.0.0/16
  machineNetwork:
  - cidr: 192.168.126.0/24
controlPlane:
  name: master
  replicas: 3
platform:
  gcp:
    projectID: example
    region: europe-north1
"""
_INDENTED = "".join(f"    {line}\n" for line in INSTALL_CONFIG.splitlines())
CLUSTER_CONFIG = f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: cluster-config-v1
  namespace: kube-system
data:
  install-config: |
{_INDENTED}"""
INFRASTRUCTURE = """\
apiVersion: config.openshift.io/v1
kind: Infrastructure
metadata:
  name: cluster
status:
  infrastructureName: test-x7k2p
  platform: GCP
"""


def data_url(content: bytes, header: str = "text/plain;charset=utf-8") -> str:
    return f"data:{header};base64,{base64.b64encode(content).decode()}"


def file_entry(path: str, content: bytes, mode: int = 0o600) -> dict[str, Any]:
    return {
        "overwrite": True,
        "path": path,
        "user": {"name": "root"},
        "contents": {"source": data_url(content)},
        "mode": mode,
    }


def document(
    bootkube: bytes | None = None, files: Mapping[str, bytes] | None = None, release: str = "4.22"
) -> dict[str, Any]:
    """Returns a bootstrap.ign with bootkube.sh, install-config, edge cases of real files, and `files`."""
    extra = [file_entry(path, content) for path, content in (files or {}).items()]
    return {
        "ignition": {"version": "3.2.0"},
        "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["ssh-ed25519 AAAA core"]}]},
        "storage": {
            "files": [
                {
                    "overwrite": False,
                    "path": "/etc/motd",
                    "user": {"name": "root"},
                    "append": [{"source": data_url(b"This is the bootstrap node.\n")}],
                    "mode": 0o644,
                },
                file_entry(BOOTKUBE, script(release) if bootkube is None else bootkube, 0o555),
                file_entry("/opt/openshift/manifests/cluster-config.yaml", CLUSTER_CONFIG.encode(), 0o644),
                file_entry(
                    "/opt/openshift/manifests/cluster-infrastructure-02-config.yml",
                    INFRASTRUCTURE.encode(),
                    0o644,
                ),
                {**file_entry("/etc/empty", b""), "contents": {"source": "data:,"}},
                *extra,
            ]
        },
        "systemd": {
            "units": [
                {"contents": "[Service]\nExecStart=/usr/local/bin/bootkube.sh\n", "name": "bootkube.service"},
                {"contents": "", "name": "release-image-pivot.service"},
                {
                    "name": "zincati.service",
                    "dropins": [{"contents": "[Unit]\nConditionPathExists=/x\n", "name": "no.conf"}],
                },
            ]
        },
    }


def compact(value: Any) -> bytes:
    """Returns JSON as the installer writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


FORMATTINGS = {
    "compact": compact,
    "compact, newline at the end": lambda value: compact(value) + b"\n",
    "indented": lambda value: json.dumps(value, indent=2).encode() + b"\n",
    "tabs and CRLF": lambda value: json.dumps(value, indent="\t").replace("\n", "\r\n").encode(),
    "keys sorted the other way": lambda value: json.dumps(_reversed(value), indent=1).encode(),
    "everything escaped": lambda value: compact(value).replace(b"/", b"\\/").replace(b"data", b"\\u0064ata"),
    "space everywhere": lambda value: (
        b" \n\t" + json.dumps(value, separators=("  ,\n ", " :\t")).encode() + b"\n\n"
    ),
    "not ASCII": lambda value: json.dumps({"héllo": "wörld ✓", **value}, ensure_ascii=False).encode(),
}


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in sorted(value, reverse=True)}
    return [_reversed(item) for item in value] if isinstance(value, list) else value
