"""The work of a flow as it is kept over a crash: all that is needed to begin it again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self

from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import Ticket
from bootbridge.join_api.policy import ticket_settings
from bootbridge.node.init.messages import InitRequest
from bootbridge.wire.proto import Message, at


@dataclass(frozen=True, slots=True)
class JoinInputs(Message):
    ticket: Ticket = at(1, Ticket())
    kubelet_key: bytes = at(2, b"", secret=True)
    # When the ticket was asked for, by this boot's clock (`boot_clock`).
    asked: int = at(3, 0)


@dataclass(frozen=True, slots=True)
class InitInputs(Message):
    """An init request that was found good, and the instance it is for; the init secret has done its part."""

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
        return ClusterSpec.load(json.loads(self.cluster_spec))

    @property
    def certificate_days(self) -> int:
        """The first kubelet's serving certificate lasts as long as those that the join service will sign."""
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
    """What an init has to hand over, and to whom."""

    init_id: str = at(1, "")
    kubeconfig: bytes = at(2, b"", secret=True)
