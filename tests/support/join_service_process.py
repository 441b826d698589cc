"""`bootbridge join-service` as a process; only its API server is fake."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootbridge.join_api.instance import Role
from bootbridge.join_api.messages import ISSUE_TICKET, JOIN_LABEL, Ticket, TicketRequest
from bootbridge.join_api.policy import POLICY_KEY, ClusterFacts, with_cluster
from bootbridge.join_service.policy_watch import POLICY_NAME
from bootbridge.runtime.grpc import GrpcClient
from bootbridge.trust.attested.channel import Attestation, connect
from bootbridge.trust.attested.exchange import VERSION, Frame, Hello
from bootbridge.trust.attested.session_key import client_context
from bootbridge.trust.evidence import Issuer, Verifier
from tests.join_service.environment import MEASUREMENT, NAMESPACE, csr, pki
from tests.support.fake_api_server import FakeApiServer
from tests.support.process_program import DEADLINE_SECONDS, OURS, free_port

HOST = "127.0.0.1"
CORE = f"/api/v1/namespaces/{NAMESPACE}"


@dataclass
class JoinServiceProcess:
    api: FakeApiServer
    port: int
    health_port: int
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "join-service.log").read_text()

    @property
    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]

    async def ticket(
        self, name: str, role: Role, issuer: Issuer, verifiers: tuple[Verifier, ...] = ()
    ) -> Ticket:
        """Requests a ticket as this instance."""
        request = TicketRequest(name, role is Role.CONTROL_PLANE, csr(name))
        side = Attestation(issuer, verifiers)
        channel = await connect(HOST, self.port, label=JOIN_LABEL, attestation=side)
        async with GrpcClient(channel.reader, channel.writer) as caller:
            return Ticket.decode(await caller.unary(ISSUE_TICKET, request.encode(), DEADLINE_SECONDS))

    async def status(self) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(HOST, self.health_port)
        writer.write(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        found: dict[str, Any] = json.loads(body)
        return found


@asynccontextmanager
async def join_service(
    folder: Path,
    policy: Mapping[str, Any],
    *,
    evidence: Mapping[str, Any] | None = None,
    descriptors_max: int | None = None,
) -> AsyncIterator[JoinServiceProcess]:
    """Runs the join service with this policy, an operator's; `evidence` is what it presents."""
    async with FakeApiServer(folder) as api:
        document = with_cluster(json.dumps(policy), ClusterFacts("v1.36.3", f"{HOST}:{api.port}"))
        metadata = {"name": POLICY_NAME, "namespace": NAMESPACE}
        config_map = {"metadata": metadata, "data": {POLICY_KEY: document.decode()}}
        api.put(f"{CORE}/configmaps/{POLICY_NAME}", config_map)
        secret = MEASUREMENT.manifest(NAMESPACE)
        api.put(f"{CORE}/secrets/{secret['metadata']['name']}", secret)
        (folder / "kubeconfig").write_text(json.dumps(api.kubeconfig()))
        found = JoinServiceProcess(api, free_port(), free_port(), folder)
        flags = [
            f"--kubeconfig={folder / 'kubeconfig'}",
            f"--host={HOST}",
            f"--port={found.port}",
            f"--health-port={found.health_port}",
            f"--pki={pki(folder / 'pki')}",
            f"--audit-file={folder / 'audit.log'}",
        ]
        if evidence is not None:
            (folder / "issuer.json").write_text(json.dumps(evidence))
            flags.append(f"--evidence={folder / 'issuer.json'}")
        limit = [] if descriptors_max is None else ["prlimit", f"--nofile={descriptors_max}"]
        with (folder / "join-service.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: ASYNC220 -- returns at once
                [*limit, OURS / "bootbridge", "join-service", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while "listening" not in found.log:
                    assert process.poll() is None, found.log
                    await asyncio.sleep(0.02)
            yield found
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, DEADLINE_SECONDS)


@asynccontextmanager
async def silent_peer(service: JoinServiceProcess, source: str = HOST) -> AsyncIterator[asyncio.StreamReader]:
    """Requires TPM evidence of the join service and presents none itself."""
    reader, writer = await asyncio.open_connection(
        HOST, service.port, ssl=client_context(), local_addr=(source, 0)
    )
    body = Frame.of(Hello(VERSION, os.urandom(32), "", ("tpm",))).encode()
    writer.write(len(body).to_bytes(4, "big") + body)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def receive_frame(reader: asyncio.StreamReader) -> Frame:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return Frame.decode(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
