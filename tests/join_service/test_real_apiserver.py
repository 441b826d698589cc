"""The join service with a real kube-apiserver, its service account and attested TLS."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.instance import Instance, Role
from bootbridge.join_api.messages import (
    ISSUE_REJOIN_TICKET,
    ISSUE_TICKET,
    JOIN_LABEL,
    RejoinRequest,
    RejoinTicket,
    Ticket,
    TicketRequest,
)
from bootbridge.join_api.policy import ClusterFacts, with_cluster
from bootbridge.join_service.authorization import Grant
from bootbridge.join_service.control_plane_lease import LEASE_NAME, ControlPlaneLease, LeaseHeld
from bootbridge.join_service.csr_approver import AUTO_APPROVE_BINDING, CsrDecision
from bootbridge.join_service.deploy import deploy
from bootbridge.join_service.main import JoinServiceOptions, run
from bootbridge.join_service.manifests import NAME, NAMESPACE, JoinServiceDeployment
from bootbridge.join_service.measurement_secret import SECRET_NAME, MeasurementSecret
from bootbridge.join_service.name_bindings import STATE_NAMESPACE, NameBindings
from bootbridge.join_service.policy_watch import POLICY_NAME
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError
from bootbridge.kube.kinds import (
    CERTIFICATE_REQUEST,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    LEASE,
    NODE,
    SECRET,
    Kind,
)
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.objects import Ref, create_object, delete_object, get_object, list_objects, merge_object
from bootbridge.runtime.grpc import GrpcClient, RpcError
from bootbridge.trust.attested.channel import Attestation, connect
from bootbridge.trust.evidence import EvidenceRefused
from tests.join_service.environment import certificate_request, csr, pki
from tests.kube.conftest import running, until
from tests.support.kubernetes import ControlPlane
from tests.support.process_program import OURS
from tests.support.software_tpm import SoftwareTpm

pytest_plugins = ["tests.support.kubernetes"]
pytestmark = pytest.mark.kubernetes

MEASUREMENT = MeasurementSecret(bytes(range(32)), bytes(range(32, 64)))
LOOPBACK = "127.0.0.1"
CALL_SECONDS = 20.0


@dataclass
class Machine:
    """An instance with a TPM."""

    name: str
    role: Role
    tpm: SoftwareTpm

    @property
    def listing(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "addresses": [LOOPBACK],
            "identity": self.tpm.identity,
        }

    @property
    def request(self) -> TicketRequest:
        return TicketRequest(self.name, self.role is Role.CONTROL_PLANE, csr(self.name))

    async def call(self, port: int, method: str, request: TicketRequest | RejoinRequest) -> bytes:
        channel = await connect(LOOPBACK, port, label=JOIN_LABEL, attestation=Attestation(self.tpm))
        async with GrpcClient(channel.reader, channel.writer) as caller:
            return await caller.unary(method, request.encode(), CALL_SECONDS)

    async def ticket(self, port: int, request: TicketRequest | None = None) -> Ticket:
        return Ticket.decode(await self.call(port, ISSUE_TICKET, request or self.request))


def machine(name: str, role: Role = Role.WORKER) -> Machine:
    return Machine(name, role, SoftwareTpm())


@dataclass
class Cluster:
    kubernetes: ControlPlane
    admin: KubeClient
    folder: Path
    account: Path  # the kubeconfig of its service account

    async def deploy(self, *machines: Machine) -> None:
        facts = ClusterFacts("v1.36.3", f"{LOOPBACK}:{self.kubernetes.port}")
        document = {"evidence": {"tpm": {}}, "instances": [each.listing for each in machines]}
        policy = with_cluster(json.dumps(document), facts)
        await deploy(self.admin, JoinServiceDeployment("example.com/bootbridge:1", policy, MEASUREMENT))

    @asynccontextmanager
    async def service(self) -> AsyncIterator[int]:
        """Runs the join service with the token of its service account and returns the port."""
        ports: list[int] = []
        options = JoinServiceOptions(
            kubeconfig=str(self.account),
            host=LOOPBACK,
            port=0,
            pki=self.folder / "pki",
            audit_file=str(self.folder / "audit.log"),
        )
        async with running(run(options, on_listening=ports.append)):
            await until(lambda: ports, 30.0)
            yield ports[0]

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]

    async def delete_created_objects(self) -> None:
        """Removes the objects of a test; the control plane is shared."""
        for kind, namespace in itertools.product((CONFIG_MAP, SECRET, LEASE), (NAMESPACE, STATE_NAMESPACE)):
            found = (await self.admin.send(list_objects(kind, namespace))).body["items"]
            for name in (each["metadata"]["name"] for each in found):
                if name.startswith(("bootbridge-", "bootstrap-token-")):
                    await self.admin.send(delete_object(Ref(kind, name, namespace)))


@pytest.fixture
async def cluster(kubernetes: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A control plane with the objects of the join service."""
    admin = KubeClient(load_kubeconfig(kubernetes.kubeconfig), qps=-1)
    pki(tmp_path / "pki", kubernetes.authority)
    await deploy(admin, JoinServiceDeployment("example.com/bootbridge:1", b"{}", MEASUREMENT))
    account = kubernetes.kubeconfig_with_token("join-service", kubernetes.token(NAMESPACE, NAME))
    cluster = Cluster(kubernetes, admin, tmp_path, account)
    yield cluster
    await cluster.delete_created_objects()
    await admin.aclose()


class TestTicket:
    async def test_a_token_of_a_ticket_authenticates_a_kubelet(self, cluster: Cluster) -> None:
        """As a member of the bootstrap group of kubeadm."""
        cluster.kubernetes.stop_apiserver()
        cluster.kubernetes.start(enable_bootstrap_token_auth=True)
        worker = machine("worker-0")
        await cluster.deploy(worker)
        async with cluster.service() as port:
            ticket = await worker.ticket(port)
        kubelet = KubeClient(
            load_kubeconfig(cluster.kubernetes.kubeconfig_with_token("kubelet", ticket.token)), qps=-1
        )
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = await kubelet.send(
            replace(get_object(Ref(NODE, "x")), method="POST", path=path, body=review)
        )
        await kubelet.aclose()
        user = answer.body["status"]["userInfo"]
        assert user["username"] == f"system:bootstrap:{ticket.token.partition('.')[0]}"
        assert "system:bootstrappers:kubeadm:default-node-token" in user["groups"]

    async def test_the_cluster_ca_signs_the_certificate_of_a_ticket(self, cluster: Cluster) -> None:
        worker = machine("worker-0")
        await cluster.deploy(worker)
        async with cluster.service() as port:
            ticket = await worker.ticket(port)
        authority = x509.load_pem_x509_certificate(cluster.kubernetes.authority.cert_pem)
        x509.load_pem_x509_certificate(ticket.kubelet_certificate).verify_directly_issued_by(authority)
        assert cluster.audit()[-1]["node"] == "worker-0"

    async def test_a_locked_machine_gets_no_ticket_but_may_rejoin_its_cluster(self, cluster: Cluster) -> None:
        """PCR 15 in the quote identifies the cluster."""
        worker = machine("worker-0")
        await cluster.deploy(worker)
        async with cluster.service() as port:
            await worker.ticket(port)
            worker.tpm.pcrs[15] = bytes.fromhex(MEASUREMENT.locked_value)
            with pytest.raises(RpcError, match="PCR 15"):
                await worker.ticket(port)
            answer = await worker.call(port, ISSUE_REJOIN_TICKET, RejoinRequest("worker-0", csr("worker-0")))
            assert RejoinTicket.decode(answer).kubelet_certificate

    async def test_only_nodes_may_rejoin(self, cluster: Cluster) -> None:
        """A node without a name binding is identified by its Node object."""
        worker = machine("rejoining")
        await cluster.deploy(worker)
        request = RejoinRequest("rejoining", csr("rejoining"))
        async with cluster.service() as port:
            with pytest.raises(RpcError, match="rejoining: not a node of this cluster"):
                await worker.call(port, ISSUE_REJOIN_TICKET, request)
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "rejoining"}}
            await cluster.admin.send(create_object(node))
            answer = await worker.call(port, ISSUE_REJOIN_TICKET, request)
            assert RejoinTicket.decode(answer).kubelet_certificate
        await cluster.admin.send(delete_object(Ref(NODE, "rejoining")))

    async def test_the_evidence_of_an_unenrolled_machine_is_refused(self, cluster: Cluster) -> None:
        await cluster.deploy(machine("worker-0"))
        async with cluster.service() as port:
            with pytest.raises(EvidenceRefused):
                await machine("worker-0").ticket(port)

    async def test_a_changed_policy_applies_to_the_next_caller(self, cluster: Cluster) -> None:
        first, second = machine("worker-0"), machine("worker-1")
        await cluster.deploy(first)
        async with cluster.service() as port:
            with pytest.raises(EvidenceRefused):
                await second.ticket(port)
            await cluster.deploy(first, second)

            async def accepted() -> bool:
                try:
                    await second.ticket(port)
                except EvidenceRefused:
                    return False
                return True

            attempts = 0
            while not await accepted():  # until the watch has delivered the change
                attempts += 1
                assert attempts < 1000, "the changed policy is not active"


class TestApproval:
    """Client certificates that kubelets request with the token of a ticket."""

    machines = (machine("worker-0"), machine("worker-1.example.com"))
    numbers = itertools.count()

    @pytest.fixture(autouse=True)
    async def bootstrap_token_permissions(self, cluster: Cluster) -> AsyncIterator[None]:
        """As kubeadm configures it: any bootstrap token may become any node."""
        cluster.kubernetes.stop_apiserver()
        cluster.kubernetes.start(enable_bootstrap_token_auth=True)
        group = "system:bootstrappers:kubeadm:default-node-token"
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}
        bindings = {
            "kubeadm:kubelet-bootstrap": "system:node-bootstrapper",
            AUTO_APPROVE_BINDING.name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        }
        for name, role in bindings.items():
            binding = {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [subject],
            }
            await cluster.admin.send(create_object(binding))
        await cluster.deploy(*self.machines)
        yield
        await cluster.admin.send(delete_object(Ref(CLUSTER_ROLE_BINDING, "kubeadm:kubelet-bootstrap")))
        for found in (await cluster.admin.send(list_objects(CERTIFICATE_REQUEST))).body["items"]:
            await cluster.admin.send(delete_object(Ref(CERTIFICATE_REQUEST, found["metadata"]["name"])))

    async def test_the_auto_approve_binding_of_kubeadm_is_removed(self, cluster: Cluster) -> None:
        with pytest.raises(KubeError, match="not found"):
            await cluster.admin.send(get_object(AUTO_APPROVE_BINDING))

    async def test_the_token_of_a_ticket_cannot_become_another_node(self, cluster: Cluster) -> None:
        async with cluster.service() as port:
            for own, other in (self.machines, self.machines[::-1]):
                async with self.kubelet(cluster, (await own.ticket(port)).token) as kubelet:
                    assert await self.decision_on(kubelet, cluster, own.name) == "Approved"
                    assert await self.decision_on(kubelet, cluster, other.name) == "Denied"
            lines = await self.audited_decisions(cluster, 4)
        assert [(line["node"], line["outcome"]) for line in lines] == [
            (each.name, outcome) for each in self.machines for outcome in ("approved", "denied")
        ]

    async def test_requests_for_other_approvers_are_left_undecided(self, cluster: Cluster) -> None:
        own = self.machines[0]
        async with cluster.service() as port:
            await cluster.admin.send(create_object(certificate_request("others", own.name)))
            async with self.kubelet(cluster, (await own.ticket(port)).token) as kubelet:
                assert await self.decision_on(kubelet, cluster, own.name) == "Approved"
        others = await cluster.admin.send(get_object(Ref(CERTIFICATE_REQUEST, "others")))
        assert not others.body["status"].get("conditions")

    async def test_one_of_several_replicas_decides_and_writes_the_audit_line(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hosts = (f"control-{number}" for number in itertools.count())
        monkeypatch.setattr("socket.gethostname", lambda: next(hosts))
        own, other = self.machines
        async with (
            cluster.service() as port,
            cluster.service(),
            cluster.service(),
            self.kubelet(cluster, (await own.ticket(port)).token) as kubelet,
        ):
            names = [own.name, other.name] * 10
            decisions = await asyncio.gather(*(self.decision_on(kubelet, cluster, name) for name in names))
            await self.audited_decisions(cluster, 20)
        assert decisions == ["Approved", "Denied"] * 10
        assert len(await self.audited_decisions(cluster, 20)) == 20

    @asynccontextmanager
    async def kubelet(self, cluster: Cluster, token: str) -> AsyncIterator[KubeClient]:
        client = KubeClient(
            load_kubeconfig(cluster.kubernetes.kubeconfig_with_token("kubelet", token)), qps=-1
        )
        yield client
        await client.aclose()

    async def audited_decisions(self, cluster: Cluster, count: int) -> list[dict[str, Any]]:
        """Waits for this number of audit lines: the kubelet may get its certificate earlier."""
        async with asyncio.timeout(CALL_SECONDS):
            while True:
                lines = [line for line in cluster.audit() if line["event"] == "client certificate"]
                if len(lines) >= count:
                    return lines
                await asyncio.sleep(0.02)

    async def decision_on(self, kubelet: KubeClient, cluster: Cluster, node: str) -> str:
        """Requests a certificate of this node and returns the decision."""
        name = f"csr-{next(self.numbers)}"
        await kubelet.send(create_object(certificate_request(name, node)))
        async with asyncio.timeout(CALL_SECONDS):
            while True:
                found = (await cluster.admin.send(get_object(Ref(CERTIFICATE_REQUEST, name)))).body
                if conditions := found["status"].get("conditions"):
                    return " and ".join(each["type"] for each in conditions)


class TestRaces:
    async def test_one_of_several_services_gets_the_lease(self, cluster: Cluster) -> None:
        now = 1_800_000_000.0
        clients = [KubeClient(load_kubeconfig(cluster.account), qps=-1) for _ in range(4)]

        leases = [ControlPlaneLease(each, STATE_NAMESPACE, lambda: now, lambda: now) for each in clients]

        async def attempt(number: int) -> bool:
            try:
                await leases[number].acquire(f"control-{number}", 600)
            except LeaseHeld:
                return False
            return True

        for _ in range(5):  # first without a lease, then with an expired one
            assert sum(await asyncio.gather(*map(attempt, range(4)))) == 1
            now += 601
        for client in clients:
            await client.aclose()

    async def test_one_of_several_keys_gets_the_name(self, cluster: Cluster) -> None:
        clients = [KubeClient(load_kubeconfig(cluster.account), qps=-1) for _ in range(4)]
        instance = Instance("n", Role.WORKER, (ip_address(LOOPBACK),))

        async def attempt(name: str, number: int) -> bool:
            try:
                await NameBindings(clients[number], STATE_NAMESPACE).bind(
                    Grant(instance, name, Role.WORKER, f"key {number}")
                )
            except JoinRefused:
                return False
            return True

        for round_ in range(5):
            tries = [attempt(f"node-{round_}", number) for number in range(4)]
            assert sum(await asyncio.gather(*tries)) == 1
        for client in clients:
            await client.aclose()

    async def test_one_of_two_control_planes_at_two_services_gets_a_ticket(self, cluster: Cluster) -> None:
        """The other one gets it once the first is a control plane."""
        first, second = machine("control-1", Role.CONTROL_PLANE), machine("control-2", Role.CONTROL_PLANE)
        await cluster.deploy(first, second)
        async with cluster.service() as one, cluster.service() as other:
            outcomes = await asyncio.gather(first.ticket(one), second.ticket(other), return_exceptions=True)
            refused = [each for each in outcomes if isinstance(each, RpcError)]
            assert len(refused) == 1, outcomes
            assert "is joining, until" in refused[0].message
            winner, loser = (first, second) if isinstance(outcomes[0], Ticket) else (second, first)
            labels = {"node-role.kubernetes.io/control-plane": ""}
            node = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": winner.name, "labels": labels},
            }
            await cluster.admin.send(create_object(node))
            try:
                assert (await loser.ticket(other)).control_plane
            finally:
                await cluster.admin.send(delete_object(Ref(NODE, winner.name)))


class TestPermissions:
    """The service account has no permissions beyond those of the tests above."""

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            (SECRET, "bootstrap-token-aaaaaa"),
            (SECRET, "another"),
            (CONFIG_MAP, "kubeadm-config"),
            (CONFIG_MAP, "bootbridge-node-worker-0"),
            (LEASE, LEASE_NAME),
            (CLUSTER_ROLE_BINDING, "cluster-admin"),
            (LEASE, "another"),
            (Kind("Pod", "/api/v1", "pods"), "x"),
            (Kind("ServiceAccount", "/api/v1", "serviceaccounts"), "default"),
        ],
    )
    async def test_other_objects_cannot_be_read(self, cluster: Cluster, kind: Kind, name: str) -> None:
        assert await self.status(cluster, get_object(Ref(kind, name, NAMESPACE))) == 403

    @pytest.mark.parametrize("kind", [CONFIG_MAP, LEASE])
    async def test_only_secrets_can_be_created_in_kube_system(self, cluster: Cluster, kind: Kind) -> None:
        metadata = {"name": "x", "namespace": NAMESPACE}
        assert await self.status(cluster, create_object({"kind": kind.name, "metadata": metadata})) == 403

    @pytest.mark.parametrize("kind", [SECRET, CONFIG_MAP, LEASE, NODE, CLUSTER_ROLE_BINDING])
    async def test_objects_cannot_be_listed(self, cluster: Cluster, kind: Kind) -> None:
        namespace = NAMESPACE if kind.namespaced else ""
        assert await self.status(cluster, list_objects(kind, namespace)) == 403

    @pytest.mark.parametrize(
        "ref",
        [
            Ref(CONFIG_MAP, POLICY_NAME, NAMESPACE),
            Ref(CONFIG_MAP, "bootbridge-node-worker-0", STATE_NAMESPACE),
            Ref(SECRET, SECRET_NAME, NAMESPACE),
            Ref(LEASE, LEASE_NAME, STATE_NAMESPACE),
            Ref(NODE, "worker-0"),
            Ref(CERTIFICATE_REQUEST, "csr-0"),
            AUTO_APPROVE_BINDING,
        ],
    )
    async def test_objects_cannot_be_deleted_or_patched(self, cluster: Cluster, ref: Ref) -> None:
        assert await self.status(cluster, delete_object(ref)) == 403
        assert await self.status(cluster, merge_object(ref, {"metadata": {"labels": {"a": "b"}}})) == 403

    async def test_csrs_of_other_signers_cannot_be_approved(self, cluster: Cluster) -> None:
        """This signer would issue a certificate for any user."""
        body = certificate_request("other-signer", "worker-0")
        body["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client"
        found = dict((await cluster.admin.send(create_object(body))).body)
        ref = Ref(CERTIFICATE_REQUEST, "other-signer")
        approved = CsrDecision("abcdef", "worker-0").condition("control-1")
        request = replace(
            get_object(ref),
            method="PUT",
            path=f"{ref.path}/approval",
            body=found | {"status": {"conditions": [approved]}},
        )
        try:
            assert await self.status(cluster, request) == 403
        finally:
            await cluster.admin.send(delete_object(ref))

    async def test_nothing_can_be_created_in_another_namespace(self, cluster: Cluster) -> None:
        binding = {"kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}}
        assert await self.status(cluster, create_object(binding)) == 403

    async def status(self, cluster: Cluster, request: Any) -> int:
        client = KubeClient(load_kubeconfig(cluster.account), qps=-1)
        try:
            return (await client.send(request)).status
        except KubeError as error:
            return error.status
        finally:
            await client.aclose()


async def test_a_deployment_can_be_repeated_but_not_with_another_secret(cluster: Cluster) -> None:
    """The measurement secret is immutable."""
    worker = machine("worker-0")
    await cluster.deploy(worker)
    await cluster.deploy(worker)
    other = JoinServiceDeployment("example.com/bootbridge:1", b"{}", MeasurementSecret(bytes(32), bytes(32)))
    with pytest.raises(Exception, match=f"Secret {NAMESPACE}/{SECRET_NAME}.*immutable"):
        await deploy(cluster.admin, other)


@pytest.mark.parametrize("device", ["/dev/tpmrm0", "unix:/run/swtpm/socket"])
async def test_a_deployment_with_evidence_is_valid(cluster: Cluster, device: str) -> None:
    """The API server validates every field strictly."""
    evidence = json.dumps({"tpm": {"device": device}}).encode()
    deployment = JoinServiceDeployment(
        "example.com/bootbridge:1", b"{}", MEASUREMENT, evidence=evidence, files=("/etc/a",), tpm=device
    )
    await deploy(cluster.admin, deployment)
    await deploy(cluster.admin, deployment)


async def test_the_join_service_waits_for_its_dependencies(
    cluster: Cluster, tmp_path: Path, kubernetes: ControlPlane
) -> None:
    """Without keys, measurement secret and policy it keeps running."""
    await cluster.delete_created_objects()
    ports: list[int] = []
    options = JoinServiceOptions(
        kubeconfig=str(cluster.account),
        host=LOOPBACK,
        port=0,
        pki=tmp_path / "late",
        audit_file=str(tmp_path / "audit.log"),
    )
    worker = machine("worker-0")
    async with running(run(options, on_listening=ports.append)) as task:
        await cluster.deploy(worker)
        assert not task.done()
        assert not ports
        pki(tmp_path / "late", kubernetes.authority)
        await until(lambda: ports, 30.0)
        assert (await worker.ticket(ports[0])).node_name == "worker-0"


# --- bootbridge node evict, as a process (tests/attacks/test_instance.py has the node's side)


@asynccontextmanager
async def node_client(cluster: Cluster, name: str) -> AsyncIterator[KubeClient]:
    """The kubelet's client, with its own certificate."""
    path = cluster.kubernetes.kubeconfig_for(f"system:node:{name}", "system:nodes")
    client = KubeClient(load_kubeconfig(path), qps=-1)
    yield client
    await client.aclose()


async def evict(cluster: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    argv = ["node", "evict", *words, "--kubeconfig", str(cluster.kubernetes.kubeconfig), "--json"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(OURS / "bootbridge", *argv, stdout=pipe, stderr=pipe)
    output, errors = await process.communicate()
    assert output, errors.decode()
    return process.returncode or 0, json.loads(output)


async def refusal(client: KubeClient, manifest: dict[str, Any]) -> str:
    """Returns why the API server refuses to create it; empty if it does not."""
    try:
        await client.send(create_object(manifest))
    except KubeError as error:
        return str(error)
    return ""


async def test_what_remains_of_a_control_plane_is_listed(cluster: Cluster) -> None:
    labels = {"node-role.kubernetes.io/control-plane": ""}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "control-9", "labels": labels}}
    await cluster.admin.send(create_object(node))
    code, done = await evict(cluster, "control-9")
    assert code == 2
    assert "CA keys" in done["remaining"][0]
    await evict(cluster, "control-9", "--undo")
