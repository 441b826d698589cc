"""The inputs of a flow, persisted in the bootstrap record so that a restart can repeat the flow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

from bootbridge.common import documents
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import Ticket
from bootbridge.join_api.policy import ticket_settings
from bootbridge.node.init.messages import InitRequest
from bootbridge.wire.proto import Message, at

BootClock = Callable[[], float]


def seconds_since_boot() -> float:
    """A BootClock: unlike time.monotonic it includes suspend, and unlike wall time it is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class JoinInputs(Message):
    ticket: Ticket = at(1, Ticket())
    kubelet_key: bytes = at(2, b"", secret=True)
    # Seconds since boot when the ticket was requested; valid across restarts of this process.
    requested_at: int = at(3, 0)


@dataclass(frozen=True, slots=True)
class InitInputs(Message):
    """A validated init request and the instance that it is for; the init secret is no longer needed."""

    init_id: str = at(1, "")
    measurement_secret: bytes = at(2, b"", secret=True)
    measurement_salt: bytes = at(3, b"")
    cluster_spec: bytes = at(4, b"")
    join_policy: bytes = at(5, b"")
    name: str = at(6, "")
    role: str = at(7, "")
    addresses: tuple[str, ...] = at(8, ())
    provider_id: str = at(9, "")
    identity: str = at(10, "")

    @classmethod
    def of(cls, request: InitRequest, instance: Instance) -> Self:
        return cls(
            request.init_id,
            request.measurement_secret,
            request.measurement_salt,
            request.cluster_spec,
            request.join_policy,
            instance.name,
            instance.role,
            tuple(str(each) for each in instance.addresses),
            instance.provider_id,
            instance.identity,
        )

    @property
    def spec(self) -> ClusterSpec:
        return documents.load(ClusterSpec, self.cluster_spec, "cluster spec")

    @property
    def certificate_days(self) -> int:
        """The validity of the first kubelet's certificate; the join service uses the same policy field."""
        return ticket_settings(self.join_policy).certificate_days

    @property
    def instance(self) -> Instance:
        return Instance(
            self.name,
            Role(self.role),
            tuple(ip_address(each) for each in self.addresses),
            self.provider_id,
            self.identity,
        )


@dataclass(frozen=True, slots=True)
class InitResult(Message):
    """The result of a finished init, kept until the client of that init ID acknowledges it."""

    init_id: str = at(1, "")
    kubeconfig: bytes = at(2, b"", secret=True)
