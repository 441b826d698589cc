"""Attacks by an instance on the join service and on other instances."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bootbridge.join_api.instance import Role
from bootbridge.join_api.messages import ISSUE_TICKET, JOIN_LABEL, TicketRequest
from bootbridge.join_service.audit import REFUSALS_PER_CALLER_MAX
from bootbridge.runtime.grpc import GrpcClient, RpcError
from bootbridge.trust.attested.channel import Attestation, connect
from bootbridge.trust.authority import Authority
from bootbridge.trust.evidence import EvidenceRefused
from bootbridge.trust.evidence.token import TokenIssuer
from bootbridge.trust.evidence.tpm import TpmIssuer, TpmVerifier
from bootbridge.trust.evidence.x509 import X509Issuer
from bootbridge.trust.measurement import MeasurementPolicy
from bootbridge.trust.tpm.commands import TpmCommand
from bootbridge.trust.tpm.device import TpmDevice
from bootbridge.trust.tpm.return_codes import TpmError
from bootbridge.wire import grpc_messages as grpc
from tests.join_service import test_real_apiserver as real
from tests.join_service.environment import csr
from tests.support.gated_tpm import GatedTpm
from tests.support.join_service_process import HOST, join_service, silent_peer
from tests.support.process_program import DEADLINE_SECONDS, OURS, until
from tests.support.software_tpm import SoftwareTpm
from tests.support.swtpm import NewChip, Swtpm

pytest_plugins = ["tests.support.kubernetes", "tests.support.swtpm"]

ZERO = "00" * 32
SECRET = "0123456789abcdef"
BINDING = b"b" * 32


def listed(name: str, role: Role, **more: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "addresses": [HOST], **more}


def certificate_for(authority: Authority, key: ec.EllipticCurvePublicKey) -> x509.Certificate:
    """Returns a certificate of this authority for a key that the authority did not create."""
    signer = load_pem_private_key(authority.key_pem, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    root = x509.load_pem_x509_certificate(authority.cert_pem)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "control-1")]))
        .issuer_name(root.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(root.not_valid_before_utc)
        .not_valid_after(root.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )


async def test_a_certificate_for_the_key_of_a_tpm_does_not_replace_a_quote(tmp_path: Path) -> None:
    """Another kernel runs, so the quote is refused; the key of the TPM can also sign for a certificate."""
    authority = Authority.create("machines")
    tpm = SoftwareTpm()
    tpm.measure(4, b"another kernel")
    policy = {
        "evidence": {
            "tpm": {"measurements": {"4": ZERO}},
            "x509": {"cas": authority.cert_pem.decode()},
        },
        "instances": [listed("control-1", Role.CONTROL_PLANE, identity=tpm.identity)],
    }
    certificate = X509Issuer([certificate_for(authority, tpm.key.public_key())], tpm.key)
    async with join_service(tmp_path, policy) as service:
        with pytest.raises(EvidenceRefused, match="PCR 4"):
            await service.ticket("control-1", Role.CONTROL_PLANE, tpm)
        with pytest.raises(RpcError, match="the inventory has another key than the evidence's"):
            await service.ticket("control-1", Role.CONTROL_PLANE, certificate)
        assert service.api.named("bootstrap-token-") == []


async def test_a_token_earns_no_control_plane_ticket(tmp_path: Path) -> None:
    """A token is a shared text: it proves neither the machine nor what runs on it."""
    policy = {
        "evidence": {"token": {"tokens": {"dev": SECRET, "dev-2": SECRET}}},
        "instances": [listed("control-1", Role.CONTROL_PLANE), listed("worker-0", Role.WORKER)],
    }
    async with join_service(tmp_path, policy) as service:
        with pytest.raises(RpcError, match=r"roleEvidence: \{control-plane: \[token\]\}"):
            await service.ticket("control-1", Role.CONTROL_PLANE, TokenIssuer("dev", SECRET.encode()))
        assert service.api.named("bootstrap-token-") == []
        assert (await service.ticket("worker-0", Role.WORKER, TokenIssuer("dev-2", SECRET.encode()))).token


async def test_a_kind_that_the_policy_does_not_list_for_an_instance_earns_no_ticket(tmp_path: Path) -> None:
    """An instance without a listed key is found by name and address, with any accepted evidence."""
    authority = Authority.create("machines")
    policy = {
        "evidence": {
            "tpm": {"trustedKeys": [SoftwareTpm().identity]},
            "x509": {"cas": authority.cert_pem.decode()},
        },
        "instances": [listed("worker-0", Role.WORKER, evidence=["tpm"]), listed("worker-1", Role.WORKER)],
    }
    async with join_service(tmp_path, policy) as service:
        issued = authority.issue_client("worker-0")
        certificate = X509Issuer.from_pem(issued.cert_pem, issued.key_pem)
        with pytest.raises(RpcError, match=r"worker-0: x509 evidence presented \(accepted: tpm\)"):
            await service.ticket("worker-0", Role.WORKER, certificate)
        assert (await service.ticket("worker-1", Role.WORKER, certificate)).token


@pytest.mark.slow
async def test_connections_of_one_source_do_not_use_up_the_tpm_of_the_join_service(
    tmp_path: Path, new_chip: NewChip
) -> None:
    """Each requires a quote, of up to a second: 31 of them would take longer than a handshake may."""
    chip, own = new_chip(), SoftwareTpm()
    identity = await TpmIssuer(chip.device).identity()
    verifiers = (TpmVerifier(MeasurementPolicy.of({}), trusted_keys=[identity]),)
    policy = {"evidence": {"tpm": {}}, "instances": [listed("worker-0", Role.WORKER, identity=own.identity)]}
    gate = GatedTpm(chip)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gate.listening())
        evidence = {"tpm": {"device": gate.address}}
        service = await stack.enter_async_context(join_service(tmp_path, policy, evidence=evidence))
        for _ in range(31):
            await stack.enter_async_context(silent_peer(service, "127.0.0.2"))
        await asyncio.wait_for(gate.quoting.wait(), DEADLINE_SECONDS)
        for _ in range(5):
            await service.status()  # by then it has read what the peers have sent
        legitimate = asyncio.ensure_future(service.ticket("worker-0", Role.WORKER, own, verifiers))
        for _ in range(5):
            await service.status()
        gate.open.set()
        assert (await legitimate).node_name == "worker-0"
        assert gate.quotes <= 3, "the first, one that all others share, and one for a late connection"


async def test_a_refused_instance_does_not_fill_the_audit_log(tmp_path: Path) -> None:
    """It is attested, and asks for another role in a loop; tickets of others are written."""
    policy = {
        "evidence": {"token": {"tokens": {"bad": SECRET, "good": SECRET}}},
        "instances": [listed("control-1", Role.CONTROL_PLANE), listed("worker-0", Role.WORKER)],
    }
    request = TicketRequest("control-1", True, csr("control-1")).encode()
    async with join_service(tmp_path, policy) as service:
        side = Attestation(TokenIssuer("bad", SECRET.encode()))
        channel = await connect(HOST, service.port, label=JOIN_LABEL, attestation=side)
        async with GrpcClient(channel.reader, channel.writer) as attacker:
            for _ in range(2 * REFUSALS_PER_CALLER_MAX):
                with pytest.raises(RpcError):
                    await attacker.unary(ISSUE_TICKET, request, DEADLINE_SECONDS)
        await service.ticket("worker-0", Role.WORKER, TokenIssuer("good", SECRET.encode()))
        status = await service.status()
    outcomes = [line["outcome"] for line in service.audit]
    assert outcomes.count("issued") == 1
    assert outcomes.count("refused") <= REFUSALS_PER_CALLER_MAX
    assert status["auditLinesOmitted"] == 2 * REFUSALS_PER_CALLER_MAX - outcomes.count("refused")


async def test_an_evicted_instance_loses_its_open_connection(tmp_path: Path) -> None:
    """Its evidence was verified when it connected, and a connection may live for a minute."""
    own = SoftwareTpm()
    policy = {"evidence": {"tpm": {}}, "instances": [listed("worker-0", Role.WORKER, identity=own.identity)]}
    request = TicketRequest("worker-0", False, csr("worker-0")).encode()
    async with join_service(tmp_path, policy) as service:
        channel = await connect(HOST, service.port, label=JOIN_LABEL, attestation=Attestation(own))
        async with GrpcClient(channel.reader, channel.writer) as evicted:
            await evicted.unary(ISSUE_TICKET, request, DEADLINE_SECONDS)
            operator = await asyncio.create_subprocess_exec(
                *(OURS / "bootbridge", "node", "evict", "worker-0", "--json"),
                *("--kubeconfig", str(tmp_path / "kubeconfig")),
            )
            assert await asyncio.wait_for(operator.wait(), DEADLINE_SECONDS) == 0
            async with asyncio.timeout(DEADLINE_SECONDS):
                while f"channels closed identity={own.identity}" not in service.log:
                    await service.status()
            with pytest.raises(RpcError) as failed:
                await evicted.unary(ISSUE_TICKET, request, DEADLINE_SECONDS)
        assert failed.value.code == grpc.UNAVAILABLE
        with pytest.raises(RpcError, match="node evicted"):
            await service.ticket("worker-0", Role.WORKER, own)


# The fixture of the tests with a real kube-apiserver.
cluster = real.cluster


@pytest.mark.kubernetes
async def test_an_evicted_node_cannot_return(cluster: real.Cluster) -> None:
    """It has a client certificate, a ticket and a place in the inventory."""
    worker, other = real.machine("evicted-0"), real.machine("kept-0")
    await cluster.deploy(worker, other)
    own = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": worker.name}}
    numbers = itertools.count()

    def renewal() -> dict[str, Any]:
        return real.certificate_request(f"renewal-{next(numbers)}", worker.name)

    async with cluster.service() as port, real.node_client(cluster, worker.name) as kubelet:
        await worker.ticket(port)
        await other.ticket(port)
        assert await real.refusal(kubelet, own) == ""
        assert await real.refusal(kubelet, renewal()) == ""
        code, dry = await real.evict(cluster, worker.name, "--dry-run")
        assert (code, dry["dryRun"]) == (0, True)
        assert {step["result"] for step in dry["steps"]} <= {
            "would be replaced",
            "would be created",
            "would be deleted",
            "would be denied",
        }
        await worker.ticket(port)
        code, done = await real.evict(cluster, worker.name)
        assert code == 0
        results = [(step["resource"], step["result"]) for step in done["steps"]]
        assert results == [
            ("ConfigMap", "replaced"),
            ("ValidatingAdmissionPolicy", "created"),
            ("ValidatingAdmissionPolicyBinding", "created"),
            ("Secret", "deleted"),
            ("Secret", "deleted"),
            ("CertificateSigningRequest", "denied"),
            ("Node", "deleted"),
        ]
        async with asyncio.timeout(real.CALL_SECONDS):  # until the API server has noticed the policy
            while "was evicted" not in await real.refusal(kubelet, renewal()):
                pass
        assert "was evicted" in await real.refusal(kubelet, own)
        for call in (
            worker.ticket(port),
            worker.call(
                port, real.ISSUE_REJOIN_TICKET, real.RejoinRequest(worker.name, real.csr(worker.name))
            ),
        ):
            with pytest.raises(RpcError, match="evicted-0: node evicted"):
                await call
        await other.ticket(port)
        code, again = await real.evict(cluster, worker.name)
        assert code == 0
        assert {
            step["result"] for step in again["steps"] if step["resource"] != "CertificateSigningRequest"
        } == {"unchanged"}
        code, undone = await real.evict(cluster, worker.name, "--undo")
        assert (code, {step["result"] for step in undone["steps"]}) == (0, {"deleted"})
        await worker.ticket(port)
    async with real.node_client(cluster, worker.name) as kubelet:
        async with asyncio.timeout(real.CALL_SECONDS):
            while await real.refusal(kubelet, own):
                pass
    await cluster.admin.send(real.delete_object(real.Ref(real.NODE, worker.name)))


@contextmanager
def tpm_helper(chip: Swtpm, folder: Path) -> Iterator[Path]:
    """Runs `bootbridge tpm-helper` and returns its socket."""
    path = folder / "tpm.sock"
    command = [OURS / "bootbridge", "tpm-helper", "--device", chip.address, "--socket", str(path)]
    with (folder / "helper.log").open("wb") as log:
        helper = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: "listening" in (folder / "helper.log").read_text(), "the helper listens")
        yield path
    finally:
        helper.kill()
        helper.wait()


async def test_a_taken_over_join_service_cannot_change_the_tpm(new_chip: NewChip, tmp_path: Path) -> None:
    """It gets quotes from the helper, and neither measures nor sends other commands."""
    chip = new_chip(start=False)
    authority = chip.manufacture()
    chip.start()
    before = await chip.device.use(lambda tpm: tpm.read_pcrs(range(24)))
    with tpm_helper(chip, tmp_path) as path:
        device = TpmDevice(f"unix:{path}")
        issuer = TpmIssuer(device)
        verifier = TpmVerifier(MeasurementPolicy.of({}), endorsement_authorities=[authority])
        verification = verifier.begin(BINDING)
        challenge = verification.verify_evidence(await issuer.issue(BINDING))
        assert isinstance(challenge, bytes)
        found = verification.verify_answer(await issuer.answer(BINDING, challenge))
        assert found.identity == await issuer.identity()
        with pytest.raises(TpmError):
            await device.use(lambda tpm: tpm.measure(15, b"forged"))
        clear = TpmCommand(0x126, (0x4000000C,), (0x40000009,))  # type: ignore[arg-type]
        with pytest.raises(TpmError):
            await device.use(lambda tpm: tpm.run(clear))
        until(lambda: "command refused" in (tmp_path / "helper.log").read_text(), "it is logged")
    assert await chip.device.use(lambda tpm: tpm.read_pcrs(range(24))) == before


@pytest.mark.skipif(  # under CI it runs, and fails where it cannot
    os.geteuid() != 0 and os.environ.get("CI") != "true",
    reason="needs root, to run a process as another user",
)
def test_another_user_of_the_node_cannot_use_the_tpm_helper(new_chip: NewChip, tmp_path: Path) -> None:
    """Not even if the socket's mode is changed."""
    chip = new_chip()
    script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(1))"
    with TemporaryDirectory() as folder, tpm_helper(chip, Path(folder)) as path:
        Path(folder).chmod(0o755)
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o666)
        command = ["/usr/bin/env", "python3", "-c", script, str(path)]
        done = subprocess.run(command, user=65534, capture_output=True, text=True, check=False)
        assert done.stdout == "b''\n", done.stderr
        assert "connection refused" in (Path(folder) / "helper.log").read_text()
