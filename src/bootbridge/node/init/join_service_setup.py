"""What makes others able to join: the join service in the new cluster, with its policy and measurement.

It shows what its control plane shows: every control plane proves itself the same way, so the service is
given this instance's own kind of evidence, and what that needs of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bootbridge.common.failures import Fatal, Transient
from bootbridge.common.files import Asset, write_file
from bootbridge.common.host import Host
from bootbridge.errors import OperatorError
from bootbridge.join_api import node_paths
from bootbridge.join_api.errors import JoinRefused, RetryLater
from bootbridge.join_api.instance import Instance, node_name
from bootbridge.join_api.policy import ClusterFacts, with_cluster
from bootbridge.join_service.authorization import Grant, identity_for_binding
from bootbridge.join_service.deploy import deploy
from bootbridge.join_service.manifests import NAMESPACE, JoinServiceDeployment
from bootbridge.join_service.measurement_secret import MeasurementSecret
from bootbridge.join_service.name_bindings import NameBindings
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.node.init.messages import OUTPUT, StageEvent
from bootbridge.node.own_identity import own_attestation
from bootbridge.node.ports import JoinServiceSetup, ProgressCallback
from bootbridge.node.stages import stages
from bootbridge.trust.evidence import EvidenceUnavailable, Issuer
from bootbridge.trust.evidence.configuration import DEFAULT_DEVICE
from bootbridge.trust.evidence.tpm import KIND as TPM

STAGE: Final = "join-service"
ADVICE: Final = "correct the policy or the specification, reboot the instance and init again"


@dataclass(frozen=True)
class JoinServiceInstaller:
    """As `kubeadm.machine.SetUpJoinService`. `evidence` is this instance's own, as its node.yaml has it."""

    host: Host
    issuer: Issuer
    evidence: Mapping[str, Any] = field(repr=False)
    join_port: int
    # Written when the init laid the bridge: whoever finds it takes the bridge down in time.
    tunnel_marker: Path

    async def __call__(self, setup: JoinServiceSetup, progress: ProgressCallback) -> None:
        if setup.spec.tunnel:
            self.tunnel_marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_file(self.tunnel_marker, Asset(b"", 0o600))
        with stages(STAGE, progress):
            if not setup.spec.join_service_image:
                progress(
                    StageEvent(STAGE, OUTPUT, "the specification names no joinServiceImage: nobody can join")
                )
                return
            await self._deploy(setup)

    async def _deploy(self, setup: JoinServiceSetup) -> None:
        try:
            access = load_kubeconfig(self.host.path(node_paths.ADMIN_KUBECONFIG))
            deployment = self._deployment(setup, access)
            client = KubeClient(access)
            try:
                await self._bind_name(setup.instance, client)
                await deploy(client, deployment)
            finally:
                await client.aclose()
        except (KubeError, KubeUnreachable, EvidenceUnavailable, RetryLater) as error:
            raise Transient(str(error)) from error
        except (OperatorError, JoinRefused) as error:
            raise Fatal(str(error), advice=ADVICE) from error

    async def _bind_name(self, instance: Instance, client: KubeClient) -> None:
        """To this machine's own key, before there is a join service that another could ask for the name."""
        shown = await own_attestation(self.issuer)
        grant = Grant(instance, node_name(instance.name), instance.role, identity_for_binding(shown))
        await NameBindings(client, NAMESPACE).bind(grant, shown.facts.get("token", ""))

    def _deployment(self, setup: JoinServiceSetup, access: ClusterAccess) -> JoinServiceDeployment:
        facts = ClusterFacts.of(setup.spec, access.authority)
        return JoinServiceDeployment(
            image=setup.spec.join_service_image,
            policy=with_cluster(setup.join_policy, facts),
            measurement=MeasurementSecret(setup.measurement_secret, setup.measurement_salt),
            port=self.join_port,
            api_server_port=node_paths.API_PORT,
            evidence=json.dumps(dict(self.evidence)).encode(),
            devices=_paths_in(self.evidence),
        )


def _paths_in(evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """What an issuer's settings name on this machine: a device, a socket, or files."""
    if TPM in evidence:
        named = [(evidence[TPM] or {}).get("device", DEFAULT_DEVICE)]
    else:
        named = [value for settings in evidence.values() for value in settings.values()]
    paths = (str(value).removeprefix("unix:") for value in named)
    return tuple(path for path in paths if path.startswith("/"))
