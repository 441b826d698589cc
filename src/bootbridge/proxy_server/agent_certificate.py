"""An agent's client certificate: whether it is still valid, and what it proves about destinations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from bootbridge.runtime.tls_files import TlsFiles, not_after
from bootbridge.runtime.tls_stream import TlsStream
from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers, allowed_by_names
from bootbridge.wire.addresses import parse_cidr

# A subject alternative name of type URI with this prefix allows a network.
CIDR_URI_PREFIX: Final = "cidr:"
EXPIRED_TEXT: Final = "certificate expired"
UNTRUSTED_TEXT: Final = "certificate's CA removed from --cluster-ca-cert"


class AgentCertificate:
    """The verified client certificate of one connection. It is valid as long as a new handshake would be.

    If the CA is renewed, the agent has to connect again, even if its certificate has not changed.
    """

    def __init__(
        self, stream: TlsStream, tls: TlsFiles, clock: Callable[[], float], *, proves_identifiers: bool
    ) -> None:
        chain = stream.peer_chain()
        self._tls = tls
        self._clock = clock
        self.expires = min(not_after(der).timestamp() for der in chain)
        self._chain = frozenset(hashlib.sha256(der).digest() for der in chain)
        self.node = ""
        self.allowed: AllowedIdentifiers | None = None
        if proves_identifiers:
            self.allowed = allowed_by_certificate(stream.peer_names())

    def problem(self) -> str:
        if self._clock() >= self.expires:
            return EXPIRED_TEXT
        return UNTRUSTED_TEXT if self._chain.isdisjoint(self._tls.trusted) else ""


def allowed_by_certificate(names: list[tuple[str, str]]) -> AllowedIdentifiers:
    """Returns what the subject alternative names allow. Names with a wildcard allow nothing."""
    hosts = [name for kind, name in names if kind in ("DNS", "IP Address") and "*" not in name]
    networks = [
        parse_cidr(name.removeprefix(CIDR_URI_PREFIX))
        for kind, name in names
        if kind == "URI" and name.startswith(CIDR_URI_PREFIX)
    ]
    return allowed_by_names(
        tuple(hosts), networks=tuple(network for network in networks if network), default_route=True
    )
