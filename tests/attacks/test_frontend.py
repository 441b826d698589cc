"""Attacks by a caller at the frontend, through the API server's dials."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.audit_lines import audit_lines
from tests.support.process_endpoints import Endpoint, HttpEndpoint, NonReader
from tests.support.process_program import until
from tests.support.process_tunnels import ConnectTunnel, RefusedDialError, dial, fetch
from tests.support.tunnel_programs import OUR_SERVER, Programs

MIB = 1 << 20
# Spellings of one loopback port: as the kernel, the resolver or an IPv6 socket understands them.
LOOPBACK = {
    "127.0.0.1": "loopback 127.0.0.0/8",
    "127.9.9.9": "loopback 127.0.0.0/8",
    "127.1": "loopback 127.0.0.0/8",
    "2130706433": "loopback 127.0.0.0/8",
    "0x7f000001": "loopback 127.0.0.0/8",
    "localhost": "loopback",
    "0.0.0.0": "unspecified 0.0.0.0/8",
    "[::]": "unspecified ::/128",
    "[::1]": "loopback ::1/128",
    "[::ffff:127.0.0.1]": "loopback 127.0.0.0/8",
}
ELSEWHERE = {
    "169.254.169.254": "link-local 169.254.0.0/16",
    "[fe80::1%lo]": "link-local fe80::/10",
    "[fd00:ec2::254]": "metadata fd00:ec2::/32",
    "168.63.129.16": "metadata 168.63.129.16/32",
    "100.100.100.200": "metadata 100.100.100.200/32",
    "255.255.255.255": "broadcast 255.255.255.255/32",
    "224.0.0.1": "multicast 224.0.0.0/4",
    "[64:ff9b::7f00:1]": "loopback 127.0.0.0/8",
    "[2002:a9fe:a9fe::1]": "link-local 169.254.0.0/16",
}


@pytest.mark.parametrize("mode", ["http-connect", "grpc"])
def test_a_caller_does_not_reach_the_agents_loopback_or_metadata_addresses(
    programs: Programs, mode: str
) -> None:
    """The agent's own admin port, in every spelling, and addresses that only its machine should dial."""
    server, agent = programs.pair(mode=mode, agent_flags={"allow-destinations": None})
    for host, rule in (LOOPBACK | ELSEWHERE).items():
        with pytest.raises(RefusedDialError) as refused:
            dial(server, f"{host}:{agent.admin.port}").close()
        assert f"destination refused by default rule {rule}" in refused.value.text, host
        assert refused.value.status == (502 if mode == "http-connect" else 0)
    assert agent.metric("refused_destinations_total", rule="default rule multicast 224.0.0.0/4") == 1
    until(lambda: agent.log.count("dial failed") == len(LOOPBACK | ELSEWHERE), "each refusal is logged")
    agent.wait_for_log("default rule unspecified ::/128")


def test_a_caller_cannot_forge_an_audit_line(programs: Programs) -> None:
    """A gRPC caller chooses every character of the destination; all of them stay in one JSON text."""
    trail = programs.folder / "audit.jsonl"
    server, _ = programs.pair(mode="grpc", server_flags={"audit-log": trail})
    forged = '10.0.0.1:1"}\n{"outcome": "established", "x": "\r\x1b[2J\u2028\x85'
    for address in (forged, "x" * 100_000):
        with pytest.raises(RefusedDialError):
            dial(server, address)
    first, second = audit_lines(trail, 2)
    assert (first["destination"], first["outcome"]) == (forged, "refused")
    assert (len(second["destination"]), second["hop"]) == (512, "caller to server")


def test_a_caller_does_not_reach_the_servers_loopback_by_direct_dials(programs: Programs) -> None:
    """Although --direct-cidrs includes it: the admin port there shows profiles."""
    flags = {"proxy-strategies": "direct", "direct-cidrs": "0.0.0.0/0,::/0"}
    server = programs.server(flags=flags)
    for host in ("127.0.0.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"):
        with pytest.raises(RefusedDialError, match="destination refused by default rule"):
            dial(server, f"{host}:{server.admin.port}").close()
    rule = "default rule loopback 127.0.0.0/8"
    assert server.metric("refused_destinations_total", rule=rule) == 2
    server.wait_for_log(rule)


def test_a_caller_reaches_only_listed_destinations(programs: Programs, web: HttpEndpoint) -> None:
    """Other addresses and other ports are refused before a connection is tried; the error names the rule."""
    port = int(web.address.rpartition(":")[2])
    flags = {
        "allow-destinations": f"127.0.0.0/8:{port},[::1/128]:{port}",
        "deny-destinations": "127.0.0.2/32",
    }
    server, agent = programs.pair(agent_flags=flags)
    assert fetch(server, web.address) == b"hello from the endpoint"
    for address, rule in {
        f"127.0.0.1:{agent.admin.port}": "default rule loopback 127.0.0.0/8",
        f"127.0.0.2:{port}": "--deny-destinations=127.0.0.2/32",
        f"192.0.2.1:{port}": "--allow-destinations (not listed)",
        f"[2001:db8::1]:{port}": "--allow-destinations (not listed)",
    }.items():
        with pytest.raises(RefusedDialError) as refused:
            dial(server, address).close()
        assert refused.value.text.rstrip().endswith(f"destination refused by {rule}")


@pytest.mark.interop
def test_a_caller_does_not_fill_the_memory_of_a_go_agent(programs: Programs) -> None:
    """It uploads to a pod that does not read. A Go agent queues 150 packets, so their size is the bound; with
    whole reads of our server, 37 MiB waited there."""
    server, _ = programs.pair(OUR_SERVER)
    non_reader = NonReader()
    pod = Endpoint(non_reader)
    tunnel = ConnectTunnel.dial(server, pod.address)
    tunnel.sock.settimeout(2)
    with suppress(TimeoutError):  # the tunnel takes no more
        while True:
            tunnel.send(bytes(65536))
    packets = server.metric("stream_packets_total", segment="to_agent", packet_type="DATA")
    accepted = server.metric("transferred_bytes_total", direction="to_agent")
    tunnel.close()
    non_reader.released.set()
    pod.close()
    assert packets > 150  # its queue is full
    assert accepted / packets <= 32 * 1024
    assert accepted < 16 * MIB
