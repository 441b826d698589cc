"""What a user sends to the instance that shall become the first node, and what is streamed back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bootbridge.wire.proto import Message, at

INIT_PORT: Final = 9000
INIT: Final = "/bootbridge.init.v1.Init/Init"
# On the same connection, once the end is on the user's disk; says nothing, and is answered with nothing.
ACKNOWLEDGE: Final = "/bootbridge.init.v1.Init/Fetched"
INIT_LABEL: Final = "bootbridge init v1"


@dataclass(frozen=True, slots=True)
class InitRequest(Message):
    """The user's master secret stays at home: the measurement secret is derived from it before."""

    # Names this attempt: the same one again resumes watching, another one is refused once one has begun.
    init_id: str = at(1, "")
    init_secret: bytes = at(2, b"", secret=True)
    measurement_secret: bytes = at(3, b"", secret=True)
    measurement_salt: bytes = at(4, b"")
    cluster_spec: bytes = at(5, b"")  # ClusterSpec.dump()
    join_policy: bytes = at(6, b"")  # the join service's policy document, as JSON
    # Of an earlier connection: everything up to this event is known already.
    seen: int = at(7, 0)


# The states of a stage.
STARTED: Final = "started"
OUTPUT: Final = "output"
DONE: Final = "done"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class StageEvent(Message):
    """A stage began, said something, ended well or failed."""

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
    # Nothing was changed yet: the very same instance may be asked again.
    may_retry: bool = at(3, False)


@dataclass(frozen=True, slots=True)
class InitEvent(Message):
    """One of the last four is set. Logs follow a failure, in pieces, for a caller who knew the secret."""

    number: int = at(1, 0)
    stage: StageEvent | None = at(2, None)
    success: InitSuccess | None = at(3, None)
    failure: InitFailure | None = at(4, None)
    log: bytes = at(5, b"")
