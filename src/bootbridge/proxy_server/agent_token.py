"""An agent's service account token: whether it has expired, and what its pod proves about destinations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bootbridge.kube.agent_pod import AgentPod
from bootbridge.tunnel.agent_credentials import REVOKED_TEXT
from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers, allowed_by_names
from bootbridge.wire.addresses import parse_cidr, parse_ip

EXPIRED_TEXT: Final = "token expired"
PROVABLE_TEXT: Final = "its node can be proved now"
# The destinations of an agent whose node is not proved.
DEFAULT_ROUTE_ONLY: Final = AllowedIdentifiers(default_route=True)


@dataclass(eq=False)
class AgentToken:
    """A token that was valid when its agent connected."""

    expires: float  # in seconds since the epoch
    clock: Callable[[], float]
    allowed: AllowedIdentifiers | None = None
    node: str = ""
    revoked: bool = field(default=False, init=False)
    # The proof failed when the agent connected, and would succeed now: the agent has to connect again.
    provable: bool = field(default=False, init=False)

    def problem(self) -> str:
        if self.revoked:
            return REVOKED_TEXT
        if self.clock() >= self.expires:
            return EXPIRED_TEXT
        return PROVABLE_TEXT if self.provable else ""


def allowed_by_pod(pod: AgentPod, mask_sizes: dict[int, int]) -> AllowedIdentifiers:
    """Returns the node's name and addresses, and its share of the pod network.

    ``mask_sizes``: the prefix length of a node's share by IP version; 0 allows only the agent's own pod.
    """
    ips = [ip for ip in map(parse_ip, pod.pod_ips) if ip is not None]
    found = [parse_cidr(f"{ip}/{mask_sizes[ip.version] or ip.max_prefixlen}") for ip in ips]
    networks = tuple(network for network in found if network is not None)
    return allowed_by_names((pod.node, *pod.host_ips), networks=networks, default_route=True)
