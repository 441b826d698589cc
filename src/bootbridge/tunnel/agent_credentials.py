"""What an agent has proved with its certificate or token, as the core uses it."""

from __future__ import annotations

from typing import Protocol

from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers


class AgentCredentials(Protocol):
    """One credential of an admitted agent: its client certificate, or its token."""

    @property
    def allowed(self) -> AllowedIdentifiers | None:
        """The identifiers that it proves; None if it bounds none."""

    def problem(self) -> str:
        """Returns why it is no longer valid, one of a few constant texts; empty while it is valid."""
