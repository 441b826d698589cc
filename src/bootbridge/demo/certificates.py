"""The certificates of the demo's programs, from two authorities."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bootbridge.demo.calls import WEBHOOK_NAME
from bootbridge.trust.authority import Authority


@dataclass(frozen=True)
class DemoCertificates:
    """Paths of certificates, and of (certificate, key) pairs."""

    tunnel_ca: Path
    webhook_ca: Path
    server: tuple[Path, Path]
    agents: dict[str, tuple[Path, Path]]
    webhook: tuple[Path, Path]

    def webhook_client_context(self) -> ssl.SSLContext:
        """Returns a TLS context that trusts the webhook's authority, like a `caBundle`."""
        return ssl.create_default_context(cafile=str(self.webhook_ca))


def issue_certificates(
    directory: Path, server_hosts: Sequence[str], agents: Sequence[str]
) -> DemoCertificates:
    """Issues all certificates: as in a cluster, the tunnel and the webhook have separate authorities."""
    tunnel, webhook = Authority.create("demo tunnel"), Authority.create("demo webhook")
    return DemoCertificates(
        tunnel_ca=tunnel.write(directory, "tunnel-ca"),
        webhook_ca=webhook.write(directory, "webhook-ca"),
        server=tunnel.issue_server(server_hosts, common_name="proxy-server").write(directory, "proxy-server"),
        agents={name: tunnel.issue_client(name).write(directory, name) for name in agents},
        webhook=webhook.issue_server([WEBHOOK_NAME]).write(directory, "webhook"),
    )
