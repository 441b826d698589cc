"""Messages between `bootbridge node init` and the instance that becomes the first node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bootbridge.wire.proto import Message, at

INIT_PORT: Final = 9000
INIT: Final = "/bootbridge.init.v1.Init/Init"
# On the same connection, after the client has stored the result; request and response are empty.
ACKNOWLEDGE: Final = "/bootbridge.init.v1.Init/Acknowledge"
INIT_LABEL: Final = "bootbridge init v1"


@dataclass(frozen=True, slots=True)
class InitRequest(Message):
    """Contains the measurement secret, which is derived from the master secret; that one is never sent."""

    # Identifies the attempt: the same ID resumes watching it, another one is rejected once an init runs.
    init_id: str = at(1, "")
    init_secret: bytes = at(2, b"", secret=True)
    measurement_secret: bytes = at(3, b"", secret=True)
    measurement_salt: bytes = at(4, b"")
    cluster_spec: bytes = at(5, b"")  # ClusterSpec.dump()
    join_policy: bytes = at(6, b"")  # the join service's policy document, as JSON
    # The number of the last event that the client has received on an earlier connection.
    seen: int = at(7, 0)


# The states of a stage.
STARTED: Final = "started"
OUTPUT: Final = "output"
DONE: Final = "done"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class StageEvent(Message):
    name: str = at(1, "")
    state: str = at(2, "")
    text: str = at(3, "")


@dataclass(frozen=True, slots=True)
class InitSuccess(Message):
    kubeconfig: bytes = at(1, b"", secret=True)
    cluster_id: bytes = at(2, b"")


@dataclass(frozen=True, slots=True)
class InitFailure(Message):
    reason: str = at(1, "")
    advice: str = at(2, "")
    # Nothing was changed on the instance: the request may be repeated.
    may_retry: bool = at(3, False)


@dataclass(frozen=True, slots=True)
class InitEvent(Message):
    """Exactly one of the last four fields is set; after a failure the log follows in pieces."""

    number: int = at(1, 0)
    stage: StageEvent | None = at(2, None)
    success: InitSuccess | None = at(3, None)
    failure: InitFailure | None = at(4, None)
    log: bytes = at(5, b"")
