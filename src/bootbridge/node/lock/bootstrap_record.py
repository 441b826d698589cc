"""The phase and the inputs of this boot's flow, stored on tmpfs: survives a crash, not a reboot.

The record contains the flow inputs, so that a restarted process can resume the flow. It is therefore secret:
directory 0700, file 0600, and the inputs are removed when the flow is done.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import stat
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol, Self

from bootbridge.common.failures import Fatal
from bootbridge.common.files import Asset, write_file
from bootbridge.errors import OperatorError
from bootbridge.node import node_paths

DIRECTORY: Final = Path(node_paths.RUN)
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
MOUNTS: Final = Path("/proc/self/mounts")
RECORD: Final = "bootstrap-record.json"
PROCESS_LOCK: Final = "process.lock"
REBOOT: Final = "reboot the instance to start over"


class Flow(StrEnum):
    INIT = "init"
    JOIN = "join"
    REJOIN = "rejoin"


class Phase(StrEnum):
    """In this order. From LOCKED on, the register contains the cluster ID."""

    LOCKING = "locking"
    LOCKED = "locked"
    # kubeadm may have started: resuming begins with a reset.
    KUBEADM = "kubeadm"
    # Init only: the API server is ready and other nodes may be joining it, so no reset from here on.
    JOIN_SERVICE = "join-service"
    DONE = "done"
    # Final until the next reboot.
    FAILED = "failed"


@dataclass(frozen=True)
class BootstrapRecord:
    phase: Phase
    flow: Flow
    cluster_id: bytes
    # The flow inputs (`flow_inputs`) and the flow's result, kept only as long as a restart may need them.
    inputs: bytes = field(default=b"", repr=False)
    result: bytes = field(default=b"", repr=False)
    # How often the flow was resumed after a crash.
    resumed: int = 0
    reason: str = ""
    advice: str = ""

    def dump(self, boot: str) -> bytes:
        document = {
            "boot": boot,
            "phase": self.phase,
            "flow": self.flow,
            "clusterID": self.cluster_id.hex(),
            "inputs": base64.b64encode(self.inputs).decode(),
            "result": base64.b64encode(self.result).decode(),
            "resumed": self.resumed,
            "reason": self.reason,
            "advice": self.advice,
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def load(cls, document: dict[str, Any]) -> Self:
        return cls(
            Phase(document["phase"]),
            Flow(document["flow"]),
            bytes.fromhex(document["clusterID"]),
            base64.b64decode(document["inputs"], validate=True),
            base64.b64decode(document["result"], validate=True),
            int(document["resumed"]),
            str(document["reason"]),
            str(document["advice"]),
        )


class RecordStore(Protocol):
    """Loads and saves the record; synchronous, so that no other task runs in between."""

    def load(self) -> BootstrapRecord | None: ...
    def save(self, record: BootstrapRecord) -> None: ...


class FileRecordStore:
    """Stores the record in a directory on tmpfs; a file lock admits one process at a time."""

    def __init__(self, directory: Path, boot: str, process_lock: int) -> None:
        self._directory = directory
        self._boot = boot
        self._process_lock = process_lock

    @classmethod
    def open(cls, directory: Path = DIRECTORY, boot_id: Path = BOOT_ID) -> Self:
        """Raises OperatorError while another process holds the lock; the kernel releases it on exit."""
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _require_own_directory(directory)
            directory.chmod(0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            process_lock = os.open(directory / PROCESS_LOCK, flags, 0o600)
        except OSError as error:
            raise OperatorError(
                f"{error.strerror}: {str(directory)!r}",
                subject="run",
                hint="run it as root, or configure another directory",
            ) from error
        try:
            fcntl.flock(process_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(process_lock)
            raise OperatorError(
                f"locked by another bootbridge process: {str(directory)!r}",
                subject="run",
                hint="wait until that process has ended, or stop it",
            ) from None
        return cls(directory, boot_id.read_text().strip(), process_lock)

    def close(self) -> None:
        os.close(self._process_lock)

    def load(self) -> BootstrapRecord | None:
        """Returns the record of this boot; deletes one of an earlier boot with its secrets."""
        try:
            record, boot = read_record(self._directory)
            if record is not None and boot != self._boot:
                (self._directory / RECORD).unlink()
                return None
            return record
        except OSError as error:
            raise Fatal(f"{self._directory / RECORD}: {error.strerror or error}", advice=REBOOT) from error

    def save(self, record: BootstrapRecord) -> None:
        write_file(self._directory / RECORD, Asset(record.dump(self._boot), 0o600))


def read_record(directory: Path) -> tuple[BootstrapRecord | None, str]:
    """Returns the record and its boot ID without taking the lock; raises Fatal if it is invalid."""
    path = directory / RECORD
    try:
        document = json.loads(path.read_bytes())
        return BootstrapRecord.load(document), str(document["boot"])
    except FileNotFoundError:
        return None, ""
    except (ValueError, KeyError, TypeError) as error:
        # Writes are atomic, so a crash cannot cause this; the file was changed by something else.
        raise Fatal(f"{path}: invalid bootstrap record: {error!r}", advice=REBOOT) from None


def _require_own_directory(directory: Path) -> None:
    """Rejects a directory that another user controls: the record decides what is run as root."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OperatorError(
            f"symbolic link, or owned by another user: {str(directory)!r}",
            subject="run",
            hint="configure a directory on tmpfs whose parents only this user can write to",
        )


def survives_reboot(path: Path, mounts: Path = MOUNTS) -> bool:
    """Returns whether `path` is outside tmpfs: a reboot would then not clear it."""
    mount_point, kind = Path("/"), ""
    for line in mounts.read_text().splitlines():
        _, mounted, found, *_ = line.split()
        # Of several mounts on one directory, the last one is visible.
        if path.is_relative_to(mounted) and Path(mounted).is_relative_to(mount_point):
            mount_point, kind = Path(mounted), found
    return kind not in ("tmpfs", "ramfs")
