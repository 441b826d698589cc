"""Implements `node.machine.Machine` with kubeadm.

An init creates the certificates in a separate kubeadm phase, so that the new cluster CA can sign the
kubelet's serving certificate before the kubelet first starts. For further nodes, the join service signs it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from bootbridge.common.files import Asset
from bootbridge.common.host import Host
from bootbridge.common.yaml_text import to_yaml
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Instance, node_name
from bootbridge.join_api.kubelet_certificate import KubeletCa, KubeletCsr
from bootbridge.join_api.messages import Ticket
from bootbridge.node import node_paths
from bootbridge.node.components.install import Installer
from bootbridge.node.init import tunnel
from bootbridge.node.init.messages import OUTPUT, StageEvent
from bootbridge.node.join import ticket_files
from bootbridge.node.kubeadm import documents, leftovers
from bootbridge.node.kubeadm.api_server import wait_until_ready
from bootbridge.node.kubeadm.kubelet_service import KubeletService
from bootbridge.node.kubeadm.run import Kubeadm, KubeadmFailed
from bootbridge.node.kubelet_csr import new_kubelet_csr
from bootbridge.node.machine import JoinServiceSetup
from bootbridge.node.stages import ProgressCallback, stages
from bootbridge.runtime import logs

SetUpJoinService = Callable[[JoinServiceSetup, ProgressCallback], Awaitable[None]]


@dataclass(frozen=True)
class KubeadmMachine:
    host: Host
    kubeadm: Kubeadm
    kubelet: KubeletService
    installer: Installer
    join_service: SetUpJoinService

    async def install_components(self, components: tuple[Component, ...], progress: ProgressCallback) -> None:
        await self.installer.install(components, progress)

    async def has_kubeadm_traces(self) -> bool:
        return bool(leftovers.find_traces(self.host))

    async def reset(self, cri_socket: str, progress: ProgressCallback) -> None:
        """Removes the remaining files even if `kubeadm reset` fails."""
        await self.kubelet.stop()
        await self._reset_by_kubeadm(cri_socket, progress)
        leftovers.remove_all(self.host)

    async def _reset_by_kubeadm(self, cri_socket: str, progress: ProgressCallback) -> None:
        try:
            await self.kubeadm.reset(cri_socket, progress)
        except KubeadmFailed as error:
            progress(StageEvent("reset", OUTPUT, f"kubeadm reset failed, removing files directly: {error}"))

    async def reset_best_effort(self, cri_socket: str, progress: ProgressCallback) -> None:
        """Runs every step even if another fails; kubeadm first, since it removes the etcd member."""
        with self._ignore_errors(progress):
            await self.kubelet.stop()
        with self._ignore_errors(progress):
            await self._reset_by_kubeadm(cri_socket, progress)
        with self._ignore_errors(progress):
            leftovers.remove_all(self.host)
        with self._ignore_errors(progress):
            tunnel.remove_state(self.host)

    @contextmanager
    def _ignore_errors(self, progress: ProgressCallback) -> Iterator[None]:
        try:
            yield
        except (BootbridgeError, OSError) as error:
            logs.event("node", logs.ERROR, "reset incomplete", error=str(error))
            progress(StageEvent("reset", OUTPUT, f"reset incomplete: {error}"))

    async def init(
        self, spec: ClusterSpec, instance: Instance, certificate_days: int, progress: ProgressCallback
    ) -> bytes:
        await self.kubeadm.require_version(spec.kubernetes_version)
        self._write_audit_policy()
        patches = str(self.host.path(node_paths.PATCHES)) if spec.tunnel else ""
        configuration = documents.dump(documents.init_documents(spec, instance, patches=patches))
        await self.kubeadm.preflight(configuration, progress)
        await self.kubeadm.make_certificates(configuration, progress)
        self._sign_own_serving_certificate(instance, timedelta(days=certificate_days), progress)
        plan = tunnel.plan_for(spec, instance) if spec.tunnel else None
        if plan:
            await tunnel.install_on_node(self.host, plan, progress)
        await self.kubelet.start()
        await self.kubeadm.init(configuration, progress)
        with stages("api-server", progress):
            await wait_until_ready(self.host.path(node_paths.ADMIN_KUBECONFIG))
        if plan:
            await self._install_tunnel_in_cluster(plan, progress)
        return self._admin_kubeconfig()

    async def set_up_join_service(self, setup: JoinServiceSetup, progress: ProgressCallback) -> None:
        await self.join_service(setup, progress)

    async def write_ticket_files(self, ticket: Ticket, kubelet_key: bytes) -> None:
        ticket_files.write_ticket(self.host, ticket, kubelet_key)

    async def join(self, ticket: Ticket, progress: ProgressCallback) -> None:
        await self.kubeadm.require_version(ticket.kubernetes_version)
        if ticket.control_plane:
            self._write_audit_policy()
        await self.kubelet.start()
        await self.kubeadm.join(documents.dump(documents.join_documents(ticket)), progress)

    async def is_kubelet_configured(self) -> bool:
        return all(map(self.host.exists, (node_paths.KUBELET_CONFIG, node_paths.KUBELET_KUBECONFIG)))

    async def start_kubelet(self) -> None:
        await self.kubelet.start()

    async def read_serving_certificate(self) -> bytes:
        return self.host.read(node_paths.SERVING) or b""

    async def write_serving_certificate(self, certificate: bytes, kubelet_key: bytes) -> None:
        ticket_files.write_serving(self.host, certificate, kubelet_key)

    def _write_audit_policy(self) -> None:
        """Needed on every control plane: the flags of the kube-apiserver, cluster-wide, contain its path."""
        self.host.make_directory(node_paths.KUBERNETES)
        self.host.write(node_paths.AUDIT_POLICY, Asset(to_yaml(documents.audit_policy())))

    def _sign_own_serving_certificate(
        self, instance: Instance, validity: timedelta, progress: ProgressCallback
    ) -> None:
        name = node_name(instance.name)
        with stages("kubelet-certificate", progress):
            authority = KubeletCa(self._read_pki("ca.crt"), self._read_pki("ca.key"))
            fresh = new_kubelet_csr(name)
            certificate = authority.sign(
                KubeletCsr(fresh.csr),
                name,
                instance.addresses,
                now=time.time(),
                validity=validity,
            )
            ticket_files.write_serving(self.host, certificate, fresh.key)

    def _read_pki(self, name: str) -> bytes:
        data = self.host.read(f"{node_paths.PKI}/{name}")
        if not data:
            raise KubeadmFailed(f"{node_paths.PKI}/{name}: not created by kubeadm")
        return data

    async def _install_tunnel_in_cluster(self, plan: tunnel.Plan, progress: ProgressCallback) -> None:
        """A failure does not fail the init: `bootbridge up` can install the rest later."""
        try:
            await tunnel.install_in_cluster(self.host, plan, progress)
        except OperatorError as error:
            progress(StageEvent(tunnel.STAGE, OUTPUT, f"{error} (run `bootbridge up` on this node)"))

    def _admin_kubeconfig(self) -> bytes:
        data = self.host.read(node_paths.ADMIN_KUBECONFIG)
        if not data:
            raise KubeadmFailed(f"{node_paths.ADMIN_KUBECONFIG}: not created by kubeadm")
        return data
