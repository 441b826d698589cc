"""Selects the addresses that a node's kubelet and API server use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from bootbridge.errors import OperatorError
from bootbridge.join_api.instance import IPAddress


def node_addresses(
    addresses: Iterable[IPAddress | str], families: Sequence[int] = ()
) -> tuple[IPAddress, ...]:
    """Returns one address per IP version, in the order of the cluster's `families`, or as given.

    The first family is the primary one: a machine without such an address cannot be a node. A machine without
    the second family has no second address.
    """
    first: dict[int, IPAddress] = {}
    for each in addresses:
        address = ip_address(each) if isinstance(each, str) else each
        first.setdefault(address.version, address)
    wanted = families or tuple(first)
    if not wanted or wanted[0] not in first:
        missing = f"no IPv{wanted[0]} address" if wanted else "no address"
        hint = "add one to the metadata, or use serviceSubnets of the machines' IP family"
        raise OperatorError(missing, subject="addresses", hint=hint)
    return tuple(first[family] for family in wanted if family in first)
