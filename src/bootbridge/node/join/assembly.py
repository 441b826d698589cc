"""Builds the join client, the rejoin and the certificate renewal of an instance from its configuration."""

from __future__ import annotations

from functools import partial
from random import Random

from bootbridge.errors import OperatorError
from bootbridge.node.configuration import NodeConfiguration
from bootbridge.node.join.client import JoinClient
from bootbridge.node.join.endpoints import join_endpoints
from bootbridge.node.join.flow import JoinFlow
from bootbridge.node.join.last_error import LastJoinError
from bootbridge.node.join.rejoin import Rejoin
from bootbridge.node.join.service_client import JoinServiceClient
from bootbridge.node.join.serving_renewal import ServingRenewal
from bootbridge.node.join.sources import JoinSources
from bootbridge.node.kubelet_csr import new_kubelet_csr
from bootbridge.node.lock.node_lock import NodeLock
from bootbridge.node.machine import Machine
from bootbridge.node.own_identity import evidence_identity
from bootbridge.trust.attested.channel import Attestation


def build_join_client(
    configuration: NodeConfiguration, lock: NodeLock, flow: JoinFlow, random: Random
) -> JoinClient:
    last_error = LastJoinError(configuration.settings.run)
    last_error.clear()
    return JoinClient(lock, _join_sources(configuration), flow, random, last_error.save)


def build_rejoin(
    configuration: NodeConfiguration, lock: NodeLock, machine: Machine, random: Random
) -> Rejoin:
    return Rejoin(lock, machine, build_serving_renewal(configuration, machine, random), random)


def build_serving_renewal(
    configuration: NodeConfiguration, machine: Machine, random: Random
) -> ServingRenewal:
    """A control plane may renew through the join service that runs on itself, being a node already."""
    return ServingRenewal(machine, _join_sources(configuration, own=True), random)


def _join_sources(configuration: NodeConfiguration, *, own: bool = False) -> JoinSources:
    """Raises OperatorError if the configuration does not state what a join service must prove."""
    if configuration.join_verifiers is None:
        hint = "keys or CA of the control planes, see docs/node.md; `none` accepts any join service"
        raise OperatorError("required field missing", subject="joinService.evidence", hint=hint)
    metadata, issuer = configuration.metadata, configuration.issuer
    client = JoinServiceClient(
        Attestation(issuer, configuration.join_verifiers), metadata.peers, partial(evidence_identity, issuer)
    )
    endpoints = partial(join_endpoints, metadata, configuration.settings.join_service.port, own=own)
    return JoinSources(metadata, endpoints, client, new_kubelet_csr)
