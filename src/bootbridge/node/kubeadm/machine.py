"""This machine, made a node with kubeadm: every step that a flow takes on it (`ports.Machine`).

An init's certificates are made before the rest of it, so that the kubelet's serving certificate can be signed
by the cluster's own authority before the kubelet is started for the first time; the join service does the
same for all others.
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
from bootbridge.join_api import node_paths
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.components import Component
from bootbridge.join_api.instance import Instance, node_name
from bootbridge.join_api.kubelet_certificate import KubeletCa, KubeletCsr
from bootbridge.join_api.kubelet_certificate_request import new_request
from bootbridge.join_api.messages import Ticket
from bootbridge.node.components.install import Installer
from bootbridge.node.init import tunnel
from bootbridge.node.init.messages import OUTPUT, StageEvent
from bootbridge.node.join import ticket_files
from bootbridge.node.kubeadm import documents, leftovers
from bootbridge.node.kubeadm.api_server import wait_until_ready
from bootbridge.node.kubeadm.kubelet_service import KubeletService
from bootbridge.node.kubeadm.run import Kubeadm, KubeadmFailed
from bootbridge.node.ports import JoinServiceSetup, ProgressCallback
from bootbridge.node.stages import stages
from bootbridge.runtime import logs

SetUpJoinService = Callable[[JoinServiceSetup, ProgressCallback], Awaitable[None]]


@dataclass(frozen=True)
class KubeadmMachine:
    """`set_up` is what an init does with its new cluster: another room's work, done with our kubeconfig."""

    host: Host
    kubeadm: Kubeadm
    kubelet: KubeletService
    installer: Installer
    set_up: SetUpJoinService

    async def install_components(self, components: tuple[Component, ...], progress: ProgressCallback) -> None:
        await self.installer.install(components, progress)

    async def has_kubeadm_traces(self) -> bool:
        return bool(leftovers.find_traces(self.host))

    async def reset(self, cri_socket: str, progress: ProgressCallback) -> None:
        """Blank again, even where kubeadm gives up half-way."""
        await self.kubelet.stop()
        await self._reset_by_kubeadm(cri_socket, progress)
        leftovers.remove_all(self.host)

    async def _reset_by_kubeadm(self, cri_socket: str, progress: ProgressCallback) -> None:
        try:
            await self.kubeadm.reset(cri_socket, progress)
        except KubeadmFailed as error:
            progress(StageEvent("reset", OUTPUT, f"what kubeadm left is removed without it: {error}"))

    async def reset_best_effort(self, cri_socket: str, progress: ProgressCallback) -> None:
        """Each part whatever becomes of the others; kubeadm's first, for it takes the member out of etcd."""
        with self._going_on(progress):
            await self.kubelet.stop()
        with self._going_on(progress):
            await self._reset_by_kubeadm(cri_socket, progress)
        with self._going_on(progress):
            leftovers.remove_all(self.host)
        with self._going_on(progress):
            tunnel.remove_state(self.host)

    @contextmanager
    def _going_on(self, progress: ProgressCallback) -> Iterator[None]:
        try:
            yield
        except (BootbridgeError, OSError) as error:
            logs.event("node", logs.ERROR, "not everything could be undone", why=str(error))
            progress(StageEvent("reset", OUTPUT, f"not everything could be undone: {error}"))

    async def init(
        self, spec: ClusterSpec, instance: Instance, certificate_days: int, progress: ProgressCallback
    ) -> bytes:
        await self.kubeadm.expect_version(spec.kubernetes_version)
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
        await self.set_up(setup, progress)

    async def write_ticket_files(self, ticket: Ticket, kubelet_key: bytes) -> None:
        ticket_files.write_ticket(self.host, ticket, kubelet_key)

    async def join(self, ticket: Ticket, progress: ProgressCallback) -> None:
        await self.kubeadm.expect_version(ticket.kubernetes_version)
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
        """On every control plane: the kube-apiserver's flags, which name it, are the cluster's."""
        self.host.make_directory(node_paths.KUBERNETES)
        self.host.write(node_paths.AUDIT_POLICY, Asset(to_yaml(documents.audit_policy())))

    def _sign_own_serving_certificate(
        self, instance: Instance, validity: timedelta, progress: ProgressCallback
    ) -> None:
        name = node_name(instance.name)
        with stages("kubelet-certificate", progress):
            authority = KubeletCa(self._made("ca.crt"), self._made("ca.key"))
            asked = new_request(name)
            certificate = authority.sign(
                KubeletCsr(asked.request),
                name,
                instance.addresses,
                now=time.time(),
                validity=validity,
            )
            ticket_files.write_serving(self.host, certificate, asked.key)

    def _made(self, name: str) -> bytes:
        data = self.host.read(f"{node_paths.PKI}/{name}")
        if not data:
            raise KubeadmFailed(f"kubeadm made no {node_paths.PKI}/{name}")
        return data

    async def _install_tunnel_in_cluster(self, plan: tunnel.Plan, progress: ProgressCallback) -> None:
        """A cluster without its bridge is a cluster: it is not undone, and `bootbridge up` lays the rest."""
        try:
            await tunnel.install_in_cluster(self.host, plan, progress)
        except OperatorError as error:
            progress(StageEvent(tunnel.STAGE, OUTPUT, f"run `bootbridge up` on this node: {error}"))

    def _admin_kubeconfig(self) -> bytes:
        """It names the control plane's endpoint, as kubeadm wrote it."""
        data = self.host.read(node_paths.ADMIN_KUBECONFIG)
        if not data:
            raise KubeadmFailed(f"kubeadm wrote no {node_paths.ADMIN_KUBECONFIG}")
        return data
