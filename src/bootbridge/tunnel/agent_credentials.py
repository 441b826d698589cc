"""What an agent has proved with its certificate or token, as the core uses it."""

from __future__ import annotations

from typing import Final, Protocol

from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers

# The problem of a credential whose holder must not go on: its open connections are closed at once. The other
# problems end a credential that may be renewed, and open connections may finish.
REVOKED_TEXT: Final = "the pod of its token was deleted"


class AgentCredentials(Protocol):
    """One credential of an admitted agent: its client certificate, or its token."""

    @property
    def allowed(self) -> AllowedIdentifiers | None:
        """The identifiers that it proves; None if it bounds none."""

    @property
    def expires(self) -> float:
        """When it ends, in seconds since the epoch; infinity if it does not."""

    @property
    def node(self) -> str:
        """The name of the node that it proves; empty if it proves none."""

    def problem(self) -> str:
        """Returns why it is no longer valid, one of a few constant texts; empty while it is valid."""
