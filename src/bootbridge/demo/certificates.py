"""The papers of everybody in the demo: who trusts whom, and with which key."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bootbridge.demo.calls import WEBHOOK_NAME
from bootbridge.trust.authority import Authority


@dataclass(frozen=True)
class Papers:
    """Files, by whom they belong to; a `.key` stands beside each `.crt`."""

    tunnel_ca: Path
    webhook_ca: Path
    server: tuple[Path, Path]
    agents: dict[str, tuple[Path, Path]]
    webhook: tuple[Path, Path]

    def tls_to_webhook(self) -> ssl.SSLContext:
        """What a kube-apiserver takes from the `caBundle` of a webhook configuration."""
        return ssl.create_default_context(cafile=str(self.webhook_ca))


def issue(directory: Path, server_hosts: Sequence[str], agents: Sequence[str]) -> Papers:
    """Two authorities, as in a cluster: the tunnel's own, and the webhook's, which the tunnel never sees."""
    tunnel, webhook = Authority.create("demo tunnel"), Authority.create("demo webhook")
    return Papers(
        tunnel_ca=tunnel.write(directory, "tunnel-ca"),
        webhook_ca=webhook.write(directory, "webhook-ca"),
        server=tunnel.issue_server(server_hosts, common_name="proxy-server").write(directory, "proxy-server"),
        agents={name: tunnel.issue_client(name).write(directory, name) for name in agents},
        webhook=webhook.issue_server([WEBHOOK_NAME]).write(directory, "webhook"),
    )
