"""A plan as JSON and back: what `up` or `inject` decided, for those who come later."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from bootbridge.bootstrap.plan.plan import (
    ClusterNetwork,
    Flavour,
    Networking,
    Plan,
    Platform,
    Protocol,
    ProxyImage,
)
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.errors import OperatorError

VERSION = 1


def dump(plan: Plan) -> bytes:
    """Readable, stable, without secrets: a plan holds none."""
    networks = plan.networks
    document = {
        "version": VERSION,
        "flavour": plan.flavour,
        "platform": plan.platform,
        "infraID": plan.infra_id,
        "protocol": plan.protocol,
        "image": {"kind": plan.image.kind, "reference": plan.image.reference},
        "networks": {
            "machine": list(map(str, networks.machine)),
            "cluster": [{"cidr": str(c.cidr), "hostPrefix": c.host_prefix} for c in networks.cluster],
            "service": list(map(str, networks.service)),
        },
        "nodeIPs": list(map(str, plan.node_ips)),
        "keyKind": plan.key_kind,
        "validitySeconds": int(plan.validity.total_seconds()),
        "hostNetwork": plan.host_network,
        "userProvisioned": plan.user_provisioned,
        "ports": asdict(plan.ports),
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def load(data: bytes, name: str) -> Plan:
    """The plan in a record; `name` is what errors call the file."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            hint = "use the bootbridge that wrote it"
            raise OperatorError(f"version {document['version']!r} is unknown", subject=name, hint=hint)
        return _plan(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OperatorError(f"is no record of a plan: {error!r}", subject=name) from error


def _plan(document: dict[str, Any]) -> Plan:
    networks = document["networks"]
    return Plan(
        flavour=Flavour(document["flavour"]),
        platform=Platform(document["platform"]),
        infra_id=document["infraID"],
        protocol=Protocol(document["protocol"]),
        image=ProxyImage(document["image"]["kind"], document["image"]["reference"]),
        networks=Networking(
            machine=tuple(map(ipaddress.ip_network, networks["machine"])),
            cluster=tuple(
                ClusterNetwork(ipaddress.ip_network(entry["cidr"]), entry["hostPrefix"])
                for entry in networks["cluster"]
            ),
            service=tuple(map(ipaddress.ip_network, networks["service"])),
        ),
        node_ips=tuple(map(ipaddress.ip_address, document["nodeIPs"])),
        key_kind=document["keyKind"],
        validity=timedelta(seconds=document["validitySeconds"]),
        host_network=document["hostNetwork"],
        user_provisioned=document["userProvisioned"],
        ports=Ports(**document["ports"]),
    )
