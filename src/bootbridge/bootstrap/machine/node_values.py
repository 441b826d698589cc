"""Holds the values that only the bootstrap node knows: addresses, image, certificates.

Manifests are rendered from a plan and these values. `bootbridge up` renders them with the values themselves.
`render` and `inject` render them with placeholders, which the node's shell replaces with sed.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from bootbridge.bootstrap.plan.plan import IPAddress, Plan


@dataclass(frozen=True)
class NodeValues:
    """Holds text as it appears in a manifest. `repr` omits the agent's key."""

    image: str
    server_hosts: str  # the addresses that agents dial, comma separated; the Go agent accepts only one
    ca_cert_base64: str
    agent_cert_base64: str
    agent_key_base64: str = field(repr=False)


PLACEHOLDERS = NodeValues(
    image="@BOOTBRIDGE_IMAGE@",
    server_hosts="@BOOTBRIDGE_SERVER_HOSTS@",
    ca_cert_base64="@BOOTBRIDGE_CA_CERT_BASE64@",
    agent_cert_base64="@BOOTBRIDGE_AGENT_CERT_BASE64@",
    agent_key_base64="@BOOTBRIDGE_AGENT_KEY_BASE64@",
)


def server_hosts(plan: Plan, addresses: tuple[IPAddress, ...]) -> str:
    """Returns the addresses that agents dial: ours dial all of them in parallel, the Go agents only one."""
    dialled = addresses if plan.image.is_ours else addresses[:1]
    return ",".join(map(str, dialled))


def node_values(
    plan: Plan,
    image: str,
    addresses: tuple[IPAddress, ...],
    *,
    ca: bytes,
    agent_cert: bytes,
    agent_key: bytes,
) -> NodeValues:
    """Returns the values of this node, from PEM."""
    return NodeValues(
        image=image,
        server_hosts=server_hosts(plan, addresses),
        ca_cert_base64=base64.b64encode(ca).decode(),
        agent_cert_base64=base64.b64encode(agent_cert).decode(),
        agent_key_base64=base64.b64encode(agent_key).decode(),
    )
