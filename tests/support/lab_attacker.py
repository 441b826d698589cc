"""Requests a ticket with wrong evidence, name or role, from an instance's network and with its TPM.

    python -m tests.support.lab_attacker ATTACK DEVICE HOST PORT NAME ROLE

Prints one JSON line: the node of the ticket, or the reason of the rejection.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable

from bootbridge.common.failures import PeerRefused, Transient
from bootbridge.join_api.instance import Role
from bootbridge.join_api.messages import JOIN_LABEL, TicketRequest
from bootbridge.node.join.service_client import JoinServiceClient
from bootbridge.node.kubelet_csr import new_kubelet_csr
from bootbridge.runtime.tasks import spawn
from bootbridge.trust.attested.channel import Attestation, connect
from bootbridge.trust.attested.listening_sockets import listening_sockets
from bootbridge.trust.attested.session_key import SessionKey, client_context
from bootbridge.trust.evidence import PROGRAM, Issuer, Requester
from bootbridge.trust.evidence.token import TokenIssuer
from bootbridge.trust.evidence.tpm import TpmIssuer
from bootbridge.trust.tpm.device import TpmDevice

PIECE = 65536


class ReplayingIssuer:
    """Sends the same quote in every session."""

    kind = "tpm"

    def __init__(self, document: bytes) -> None:
        self._document = document

    async def issue(self, statement: bytes, requester: Requester = PROGRAM) -> bytes:
        return self._document

    async def answer(self, statement: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        return b""


class RecordingIssuer:
    """Forwards the TPM's quote, and records it."""

    kind = "tpm"

    def __init__(self, chip: TpmIssuer) -> None:
        self._chip = chip
        self.document = b""

    async def issue(self, statement: bytes, requester: Requester = PROGRAM) -> bytes:
        self.document = await self._chip.issue(statement, requester)
        return self.document

    async def answer(self, statement: bytes, challenge: bytes, requester: Requester = PROGRAM) -> bytes:
        return await self._chip.answer(statement, challenge, requester)


async def request_ticket(issuer: Issuer, host: str, port: int, name: str, role: Role) -> str:
    """Requests a ticket for that node name and role."""
    request = TicketRequest(name, role is Role.CONTROL_PLANE, new_kubelet_csr(name).csr)
    ticket = await JoinServiceClient(Attestation(issuer)).request_ticket((host, port), request)
    return ticket.node_name


async def valid_quote(device: str, host: str, port: int, name: str, role: Role) -> str:
    """Sends a valid quote; the requested name or role may be wrong."""
    return await request_ticket(TpmIssuer(TpmDevice(device)), host, port, name, role)


async def stale(device: str, host: str, port: int, name: str, role: Role) -> str:
    """Sends a valid quote that is bound to no session."""
    old = await TpmIssuer(TpmDevice(device)).issue(os.urandom(32))
    return await request_ticket(ReplayingIssuer(old), host, port, name, role)


async def replayed(device: str, host: str, port: int, name: str, role: Role) -> str:
    """Sends a quote that the service has accepted in another session."""
    recording = RecordingIssuer(TpmIssuer(TpmDevice(device)))
    channel = await connect(host, port, label=JOIN_LABEL, attestation=Attestation(recording))
    await channel.close()
    return await request_ticket(ReplayingIssuer(recording.document), host, port, name, role)


async def relayed(device: str, host: str, port: int, name: str, role: Role) -> str:
    """Connects through a man in the middle that forwards all bytes, without verifying the server."""
    sockets = await listening_sockets("127.0.0.1", 0)
    key = SessionKey.create()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection(host, port, ssl=client_context(), server_hostname=host)
        spawn(_copy(onward[0], writer), "relay: down")
        await _copy(reader, onward[1])

    async with await asyncio.start_server(forward, sock=sockets[0], ssl=key.context):
        return await request_ticket(
            TpmIssuer(TpmDevice(device)), "127.0.0.1", sockets[0].getsockname()[1], name, role
        )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def by_token(token: str, host: str, port: int, name: str, role: Role) -> str:
    """Sends a token, ID.SECRET, instead of a quote."""
    identifier, _, secret = token.partition(".")
    return await request_ticket(TokenIssuer(identifier, secret.encode()), host, port, name, role)


Attack = Callable[[str, str, int, str, Role], Awaitable[str]]
ATTACKS: dict[str, Attack] = {
    "valid-quote": valid_quote,
    "stale": stale,
    "replayed": replayed,
    "relayed": relayed,
    "token": by_token,
}


async def main(attack: str, device: str, host: str, port: str, name: str, role: str) -> dict[str, str]:
    try:
        return {"ticket": await ATTACKS[attack](device, host, int(port), name, Role(role))}
    except PeerRefused as refusal:
        return {"refused": str(refusal)}
    except Transient as error:
        return {"error": str(error)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
