"""Which of a machine's addresses its kubelet and its API server go by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import IPAddress


def node_addresses(
    addresses: Iterable[IPAddress | str], families: Sequence[int] = ()
) -> tuple[IPAddress, ...]:
    """One for each IP version, as a kubelet takes them: in the order of the cluster's `families`, or as come.

    The first one's family is the primary one. A machine without an address of the primary family cannot be a
    node; one without the second merely has no second address.
    """
    first: dict[int, IPAddress] = {}
    for each in addresses:
        address = ip_address(each) if isinstance(each, str) else each
        first.setdefault(address.version, address)
    wanted = families or tuple(first)
    if not wanted or wanted[0] not in first:
        missing = f"no IPv{wanted[0]} address" if wanted else "no address"
        hint = "name one in the metadata, or give serviceSubnets of the family that the machines have"
        raise OperatorError(f"the instance has {missing}", subject="addresses", hint=hint)
    return tuple(first[family] for family in wanted if family in first)


def host_and_port(address: IPAddress, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
