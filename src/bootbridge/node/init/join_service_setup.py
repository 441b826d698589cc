"""Deploys the join service into the new cluster, with its policy and measurement secret.

This is the only module of `node` that imports `join_service`. All control planes of a cluster use the same
kind of evidence, so the join service gets this instance's evidence settings and the devices they name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bootbridge.common import documents
from bootbridge.common.failures import Fatal, Transient
from bootbridge.common.files import Asset, write_file
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.join_api.errors import JoinRefused, RetryLater
from bootbridge.join_api.instance import Instance, node_name
from bootbridge.join_api.policy import ClusterFacts, with_cluster
from bootbridge.join_service.authorization import Grant
from bootbridge.join_service.deploy import deploy
from bootbridge.join_service.manifests import TPM_SOCKET, JoinServiceDeployment, state_namespace
from bootbridge.join_service.measurement_secret import MeasurementSecret
from bootbridge.join_service.name_bindings import STATE_NAMESPACE, NameBindings
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.objects import apply_object
from bootbridge.node import node_paths
from bootbridge.node.init.messages import OUTPUT, StageEvent
from bootbridge.node.machine import JoinServiceSetup
from bootbridge.node.own_identity import own_attestation
from bootbridge.node.stages import ProgressCallback, stages
from bootbridge.trust.evidence import EvidenceUnavailable, Issuer
from bootbridge.trust.evidence.configuration import DEFAULT_DEVICE, IssuerSettings

STAGE: Final = "join-service"
ADVICE: Final = "correct the policy or the cluster spec, reboot the instance and run init again"


@dataclass(frozen=True)
class JoinServiceInstaller:
    """`evidence` is the `evidence` field of this instance's node.yaml."""

    host: Host
    issuer: Issuer
    evidence: IssuerSettings
    join_port: int
    # Created if this init has installed the tunnel; `tunnel_removal` removes the tunnel only if it exists.
    tunnel_marker: Path

    async def install(self, setup: JoinServiceSetup, progress: ProgressCallback) -> None:
        if setup.spec.tunnel:
            self.tunnel_marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_file(self.tunnel_marker, Asset(b"", 0o600))
        with stages(STAGE, progress):
            if not setup.spec.join_service_image:
                progress(StageEvent(STAGE, OUTPUT, "joinServiceImage is not set: no instance can join"))
                return
            await self._deploy(setup)

    async def _deploy(self, setup: JoinServiceSetup) -> None:
        try:
            access = load_kubeconfig(self.host.path(node_paths.ADMIN_KUBECONFIG))
            deployment = self._deployment(setup, access)
            client = KubeClient(access)
            try:
                await client.send(apply_object(state_namespace()))
                await self._bind_name(setup.instance, client)
                await deploy(client, deployment)
            finally:
                await client.aclose()
        except (KubeError, KubeUnreachable, EvidenceUnavailable, RetryLater) as error:
            raise Transient(str(error)) from error
        except (OperatorError, JoinRefused) as error:
            raise Fatal(str(error), advice=ADVICE) from error

    async def _bind_name(self, instance: Instance, client: KubeClient) -> None:
        """Binds the node name to this instance's key, before the join service could bind it to another."""
        attestation = await own_attestation(self.issuer)
        grant = Grant(instance, node_name(instance.name), instance.role, attestation.identity)
        await NameBindings(client, STATE_NAMESPACE).bind(grant, attestation.facts.get("token", ""))

    def _deployment(self, setup: JoinServiceSetup, access: ClusterAccess) -> JoinServiceDeployment:
        facts = ClusterFacts.of(setup.spec, access.authority)
        evidence = documents.dump(self.evidence)
        tpm = _tpm_of(evidence)
        return JoinServiceDeployment(
            image=setup.spec.join_service_image,
            policy=with_cluster(setup.join_policy, facts),
            measurement=MeasurementSecret(setup.measurement_secret, setup.measurement_salt),
            port=self.join_port,
            api_server_port=node_paths.API_PORT,
            evidence=json.dumps(_in_pod(evidence)).encode(),
            files=tuple(path for path in self.evidence.paths if path != tpm.removeprefix("unix:")),
            tpm=tpm,
        )


def _tpm_of(evidence: Any) -> str:
    """Returns the address of the node's TPM; empty if there is none, or if it is not on the node (tcp:)."""
    tpm = evidence.get("tpm") if isinstance(evidence, dict) else None
    address = str(tpm.get("device", DEFAULT_DEVICE)) if tpm is not None else ""
    return address if address.startswith(("/", "unix:/")) else ""


def _in_pod(evidence: Any) -> Any:
    """Returns the evidence settings of the join service: a TPM is behind the helper's socket there."""
    if not _tpm_of(evidence):
        return evidence
    return {**evidence, "tpm": {**evidence["tpm"], "device": f"unix:{TPM_SOCKET}"}}
