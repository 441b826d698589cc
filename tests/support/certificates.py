"""Certificates for one test: a CA for agents, a CA for frontends, and leaf certificates."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from bootbridge.trust.authority import Authority

NAMES = ("localhost", "127.0.0.1", "127.0.0.2", "127.0.0.3", "::1")


class Certificates:
    """Files in `folder`: agents-ca, server, agent; frontends-ca, frontend-server, frontend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents = Authority.create("agents")
        self.frontends = Authority.create("frontends")
        self.agents.write(folder, "agents-ca")
        self.frontends.write(folder, "frontends-ca")
        self.agents.issue_server(NAMES).write(folder, "server")
        self.agents.issue_client("agent").write(folder, "agent")
        self.frontends.issue_server(NAMES).write(folder, "frontend-server")
        self.frontends.issue_client("kube-apiserver").write(folder, "frontend")

    def issue_agent(
        self, name: str, names: Iterable[str] = (), validity: timedelta | None = None
    ) -> dict[str, str]:
        """Issues one agent's own certificate for `names`, and returns the agent's flags."""
        self.agents.issue_client(name, names=names, validity=validity).write(self.folder, name)
        return {"agent-cert": self.path(f"{name}.crt"), "agent-key": self.path(f"{name}.key")}

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def agent_port_flags(self) -> dict[str, str]:
        return {
            "cluster-ca-cert": self.path("agents-ca.crt"),
            "cluster-cert": self.path("server.crt"),
            "cluster-key": self.path("server.key"),
        }

    def frontend_port_flags(self) -> dict[str, str]:
        return {
            "server-ca-cert": self.path("frontends-ca.crt"),
            "server-cert": self.path("frontend-server.crt"),
            "server-key": self.path("frontend-server.key"),
        }

    def agent_flags(self) -> dict[str, str]:
        return {
            "ca-cert": self.path("agents-ca.crt"),
            "agent-cert": self.path("agent.crt"),
            "agent-key": self.path("agent.key"),
        }

    def frontend_context(self, alpn: str = "") -> ssl.SSLContext:
        """What a frontend over TCP connects with."""
        context = ssl.create_default_context(cafile=self.path("frontends-ca.crt"))
        context.load_cert_chain(self.path("frontend.crt"), self.path("frontend.key"))
        if alpn:
            context.set_alpn_protocols([alpn])
        return context

    def agent_context(self) -> ssl.SSLContext:
        """What an agent connects with, for tests that play one by hand."""
        context = ssl.create_default_context(cafile=self.path("agents-ca.crt"))
        context.load_cert_chain(self.path("agent.crt"), self.path("agent.key"))
        context.set_alpn_protocols(["h2"])
        return context
