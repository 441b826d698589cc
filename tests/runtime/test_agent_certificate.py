"""What an agent's client certificate proves."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from bootbridge.proxy_server.agent_certificate import allowed_by_certificate
from bootbridge.trust.authority import Authority
from bootbridge.tunnel.allowed_identifiers import AllowedIdentifiers, admit
from bootbridge.tunnel.identifiers import parse_identifiers


def admitted(names: list[tuple[str, str]], claim: str) -> bool:
    return not admit(parse_identifiers(claim), (allowed_by_certificate(names),)).ignored


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        (("DNS", "*"), "host=victim"),
        (("DNS", "*.example.com"), "host=victim.example.com"),
        (("DNS", "w*.example.com"), "host=worker.example.com"),
        (("DNS", "0.0.0.0/0"), "cidr=10.0.0.0/8"),
        (("URI", "0.0.0.0/0"), "cidr=10.0.0.0/8"),
        (("URI", "https://victim"), "host=victim"),
        (("URI", "cidr:10.0.0.0/8"), "cidr=10.0.0.0/7"),
        (("URI", "cidr:0.0.0.0/0"), "ipv6=fd00::1"),
        (("URI", "cidr:::/0"), "ipv4=10.0.0.1"),
        (("URI", "cidr:::/0"), "cidr=::ffff:10.0.0.0/104"),
        (("URI", "cidr:10.0.0.0/99"), "ipv4=10.0.0.1"),
        (("URI", "cidr:"), "ipv4=10.0.0.1"),
        (("email", "victim"), "host=victim"),
        (("DirName", "victim"), "host=victim"),
        (("IP Address", "10.0.0.1"), "ipv4=10.0.0.2"),
        (("IP Address", "10.0.0.1"), "cidr=10.0.0.0/31"),
    ],
)
def test_other_names_prove_nothing(name: tuple[str, str], claim: str) -> None:
    """Neither wildcards, nor names of other kinds, nor addresses next to a named one."""
    assert not admitted([name], claim)


@pytest.mark.parametrize(
    "claim",
    [
        "host=Worker-1",
        "ipv4=10.0.0.1",
        "ipv4=::ffff:10.0.0.1",
        "ipv6=FD00:0:0::1",
        "cidr=10.1.2.0/24",
        "cidr=::ffff:10.1.0.0/112",
        "cidr=fd01:0:0:1::/64",
        "default-route=true",
    ],
)
def test_the_names_of_a_certificate_prove_what_they_name(tmp_path: Path, claim: str) -> None:
    """As TLS shows them: addresses of both families, DNS names in any case, and networks as URI."""
    names = ("worker-1", "10.0.0.1", "fd00::1", "cidr:10.1.0.0/16", "cidr:fd01::/48")
    issued = Authority.create("agents").issue_client("worker-1", names=names, validity=timedelta(days=1))
    path = tmp_path / "agent.crt"
    path.write_bytes(issued.cert_pem)
    shown = ssl._ssl._test_decode_cert(str(path))["subjectAltName"]
    assert admitted(list(shown), claim)


def test_a_certificate_without_names_proves_the_default_route_only() -> None:
    assert allowed_by_certificate([]) == AllowedIdentifiers(default_route=True)
