"""How far this boot's bootstrap has come, kept where a crash leaves it and a reboot does not.

The record holds the work itself, so that whoever restarts after a crash can go on with it. It is as
secret as what it holds: directory 0700, file 0600, and the work is dropped once it is done.
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
from bootbridge.join_api import node_paths

DIRECTORY: Final = Path(node_paths.RUN)
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
MOUNTS: Final = Path("/proc/self/mounts")
RECORD: Final = "phase.json"
GUARD: Final = "guard"
REBOOT: Final = "reboot the instance: it then starts anew"


class Flow(StrEnum):
    INIT = "init"
    JOIN = "join"
    REJOIN = "rejoin"


class Phase(StrEnum):
    """In this order. From LOCKED on the register says so, too."""

    LOCKING = "locking"
    LOCKED = "locked"
    # kubeadm may have begun: whoever comes after a crash begins with a reset.
    KUBEADM = "kubeadm"
    # Init only: the API server is there, others may be joining it, so no reset from here on.
    JOIN_SERVICE = "founding"
    DONE = "done"
    # Told to the operator; only a reboot leads on.
    FAILED = "failed"


@dataclass(frozen=True)
class BootstrapRecord:
    phase: Phase
    flow: Flow
    cluster_id: bytes
    # The flow's work (node/work.py), and what has come of it: kept only as long as a restart may need it.
    inputs: bytes = field(default=b"", repr=False)
    result: bytes = field(default=b"", repr=False)
    # How often the work was taken up again after a crash.
    resumed: int = 0
    reason: str = ""
    advice: str = ""

    def dump(self, boot: str) -> bytes:
        document = {
            "boot": boot,
            "phase": self.phase,
            "flow": self.flow,
            "clusterID": self.cluster_id.hex(),
            "work": base64.b64encode(self.inputs).decode(),
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
            base64.b64decode(document["work"], validate=True),
            base64.b64decode(document["result"], validate=True),
            int(document["resumed"]),
            str(document["reason"]),
            str(document["advice"]),
        )


class RecordStore(Protocol):
    """Where the record is. Both are synchronous: between a question and its answer nobody else acts."""

    def load(self) -> BootstrapRecord | None: ...
    def save(self, record: BootstrapRecord) -> None: ...


class FileRecordStore:
    """The record in a directory on tmpfs, which one process at a time may own."""

    def __init__(self, directory: Path, boot: str, guard: int) -> None:
        self._directory = directory
        self._boot = boot
        self._guard = guard

    @classmethod
    def open(cls, directory: Path = DIRECTORY, boot_id: Path = BOOT_ID) -> Self:
        """PeerRefused while another process of ours is at work; its death frees the directory at once."""
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _must_be_ours(directory)
            directory.chmod(0o700)
            guard = os.open(directory / GUARD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise OperatorError(
                f"cannot use {directory}: {error.strerror}", hint="run as root, or choose another directory"
            ) from error
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(guard)
            raise OperatorError(
                f"another `bootbridge node run` holds {directory}", hint="let it end, or stop it first"
            ) from None
        return cls(directory, boot_id.read_text().strip(), guard)

    def close(self) -> None:
        os.close(self._guard)

    def load(self) -> BootstrapRecord | None:
        """This boot's record; one of an earlier boot is removed, its secrets with it."""
        try:
            record, boot = read(self._directory)
            if record is not None and boot != self._boot:
                (self._directory / RECORD).unlink()
                return None
            return record
        except OSError as error:
            raise Fatal(f"{self._directory / RECORD}: {error.strerror or error}", advice=REBOOT) from error

    def save(self, record: BootstrapRecord) -> None:
        write_file(self._directory / RECORD, Asset(record.dump(self._boot), 0o600))


def read(directory: Path) -> tuple[BootstrapRecord | None, str]:
    """The record and the boot it is of, for whoever only looks; needs no ownership."""
    path = directory / RECORD
    try:
        document = json.loads(path.read_bytes())
        return BootstrapRecord.load(document), str(document["boot"])
    except FileNotFoundError:
        return None, ""
    except (ValueError, KeyError, TypeError) as error:
        # Written whole or not at all, so this is not the trace of a crash: nothing here can be relied on.
        raise Fatal(f"{path} cannot be read: {error!r}", advice=REBOOT) from None


def _must_be_ours(directory: Path) -> None:
    """What lies here is done as root: a directory that another user put in our way is not used."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OperatorError(
            f"{directory} is a link, or belongs to somebody else",
            subject="run",
            hint="name a directory on tmpfs whose parents only this user can write to",
        )


def outlives_a_reboot(path: Path, mounts: Path = MOUNTS) -> bool:
    """Whether what is written there is still there afterwards: advice to reboot would then lead nowhere."""
    place, kind = Path("/"), ""
    for line in mounts.read_text().splitlines():
        _, mounted, found, *_ = line.split()
        # The last one mounted is the one that is seen.
        if path.is_relative_to(mounted) and Path(mounted).is_relative_to(place):
            place, kind = Path(mounted), found
    return kind not in ("tmpfs", "ramfs")
