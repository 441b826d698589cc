"""An instance that asks for a ticket with wrong evidence, name or role; runs on its network, with its TPM.

    python -m tests.support.lab_imposter TRICK DEVICE HOST PORT NAME ROLE

Prints one JSON line: the ticket that it got, or the reason of the rejection.
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
from bootbridge.trust.evidence import Issuer
from bootbridge.trust.evidence.token import TokenIssuer
from bootbridge.trust.evidence.tpm import TpmIssuer
from bootbridge.trust.tpm.device import TpmDevice

PIECE = 65536


class Replaying:
    """Shows the same quote in every session."""

    kind = "tpm"

    def __init__(self, document: bytes) -> None:
        self._document = document

    async def issue(self, statement: bytes) -> bytes:
        return self._document

    async def answer(self, statement: bytes, challenge: bytes) -> bytes:
        return b""


class Overheard:
    """Passes the TPM's quote on, and keeps it."""

    kind = "tpm"

    def __init__(self, chip: TpmIssuer) -> None:
        self._chip = chip
        self.document = b""

    async def issue(self, statement: bytes) -> bytes:
        self.document = await self._chip.issue(statement)
        return self.document

    async def answer(self, statement: bytes, challenge: bytes) -> bytes:
        return await self._chip.answer(statement, challenge)


async def ask(issuer: Issuer, host: str, port: int, name: str, role: Role) -> str:
    """Ask for a ticket as that node and in that role."""
    request = TicketRequest(name, role is Role.CONTROL_PLANE, new_kubelet_csr(name).csr)
    ticket = await JoinServiceClient(Attestation(issuer)).request_ticket((host, port), request)
    return f"a ticket for {ticket.node_name}"


async def honestly(device: str, host: str, port: int, name: str, role: Role) -> str:
    """A valid quote; the requested name or role may be wrong."""
    return await ask(TpmIssuer(TpmDevice(device)), host, port, name, role)


async def stale(device: str, host: str, port: int, name: str, role: Role) -> str:
    """A valid quote of a statement from no session."""
    old = await TpmIssuer(TpmDevice(device)).issue(os.urandom(32))
    return await ask(Replaying(old), host, port, name, role)


async def replayed(device: str, host: str, port: int, name: str, role: Role) -> str:
    """A quote that the same service has accepted in another session."""
    overheard = Overheard(TpmIssuer(TpmDevice(device)))
    channel = await connect(host, port, label=JOIN_LABEL, attestation=Attestation(overheard))
    await channel.close()
    return await ask(Replaying(overheard.document), host, port, name, role)


async def relayed(device: str, host: str, port: int, name: str, role: Role) -> str:
    """Through a machine in the middle that changes no byte, with a client that verifies nothing."""
    sockets = await listening_sockets("127.0.0.1", 0)
    key = SessionKey.create()

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection(host, port, ssl=client_context(), server_hostname=host)
        spawn(_pumped(onward[0], writer), "relay: down")
        await _pumped(reader, onward[1])

    async with await asyncio.start_server(between, sock=sockets[0], ssl=key.context):
        return await ask(TpmIssuer(TpmDevice(device)), "127.0.0.1", sockets[0].getsockname()[1], name, role)


async def _pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def by_token(token: str, host: str, port: int, name: str, role: Role) -> str:
    """With a token in place of a TPM: ID.SECRET."""
    identifier, _, secret = token.partition(".")
    return await ask(TokenIssuer(identifier, secret.encode()), host, port, name, role)


Trick = Callable[[str, str, int, str, Role], Awaitable[str]]
TRICKS: dict[str, Trick] = {
    "honest": honestly,
    "stale": stale,
    "replayed": replayed,
    "relayed": relayed,
    "token": by_token,
}


async def main(trick: str, device: str, host: str, port: str, name: str, role: str) -> dict[str, str]:
    try:
        return {"got": await TRICKS[trick](device, host, int(port), name, Role(role))}
    except PeerRefused as refusal:
        return {"refused": str(refusal)}
    except Transient as trouble:
        return {"trouble": str(trouble)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
