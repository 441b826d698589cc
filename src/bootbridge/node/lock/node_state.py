"""What an instance remembers across reboots: its node name, its role and its cluster.

Written as the last step of a flow, so that its existence proves that the flow completed. The cluster ID is
not secret.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bootbridge.common.failures import Fatal
from bootbridge.common.files import Asset, write_file
from bootbridge.join_api.instance import Role

STATE: Final = Path("/var/lib/bootbridge/node/state.json")


@dataclass(frozen=True)
class NodeState:
    role: Role
    name: str
    cluster_id: bytes


class NodeStateStore(Protocol):
    def load(self) -> NodeState | None: ...
    def save(self, state: NodeState) -> None: ...


class FileNodeStateStore:
    def __init__(self, path: Path = STATE) -> None:
        self._path = path

    def load(self) -> NodeState | None:
        try:
            document = json.loads(self._path.read_bytes())
            return NodeState(
                Role(document["role"]), str(document["name"]), bytes.fromhex(document["clusterID"])
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Fatal(
                f"{self._path}: invalid node state: {error!r}",
                advice="restore the file, or delete it to let the instance join again",
            ) from None

    def save(self, state: NodeState) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = {"role": state.role, "name": state.name, "clusterID": state.cluster_id.hex()}
        write_file(self._path, Asset(json.dumps(document, indent=1).encode() + b"\n", 0o600))
