"""The demo's network namespaces: sockets open in them, links reach only their peer, and all are removed."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bootbridge.demo import environment
from bootbridge.demo.interrupts import Interrupted, Interrupts
from bootbridge.demo.network import NAMED_NAMESPACES, DemoNamespaces, NetworkContext, VethPair
from tests.demo.conftest import needs_namespaces
from tests.support.lab import SHORT_PAUSES, until

LISTENER = "import socket; s = socket.create_server(('192.0.2.9', 8443)); print('up', flush=True); s.accept()"


@pytest.fixture
def namespaces() -> Iterator[DemoNamespaces]:
    namespaces = DemoNamespaces(f"bb-test-{os.getpid()}")
    yield namespaces
    namespaces.remove()


@needs_namespaces
def test_socket_opens_in_the_namespace_and_the_process_stays_outside(namespaces: DemoNamespaces) -> None:
    home = os.readlink("/proc/self/ns/net")
    near, far = namespaces.create("near", "near"), namespaces.create("far", "far")
    namespaces.connect(VethPair((near, far), ("a", "b"), (("192.0.2.8", "192.0.2.9"),)))
    listener = subprocess.Popen(far.command([sys.executable, "-c", LISTENER]), stdout=subprocess.PIPE)
    assert listener.stdout is not None
    assert listener.stdout.readline() == b"up\n"
    with near.connect("192.0.2.9", 8443, timeout=5) as connection:
        assert connection.getpeername() == ("192.0.2.9", 8443)
    assert os.readlink("/proc/self/ns/net") == home
    assert listener.wait(5) == 0
    listener.stdout.close()


@needs_namespaces
@pytest.mark.parametrize("address", [environment.POD_IPV4, environment.POD_IPV6])
def test_control_plane_has_no_route_to_the_pod(namespaces: DemoNamespaces, address: str) -> None:
    """A node reaches the pod's closed port; the control plane has no route."""
    created = environment.in_namespaces(namespaces, ipv6=True)

    def error_from(context: NetworkContext) -> int | None:
        with pytest.raises(OSError) as error:
            context.connect(address, 8443, timeout=2)
        return error.value.errno

    # The kernel adds IPv6 routes only when it has noticed that the new link is up.
    node = created.nodes[1].network
    until(lambda: error_from(node) == errno.ECONNREFUSED, "the node reaches the pod", 20, SHORT_PAUSES)
    assert error_from(created.control_plane) == errno.ENETUNREACH


@needs_namespaces
def test_remove_deletes_all_namespaces_and_can_be_repeated(namespaces: DemoNamespaces) -> None:
    environment.in_namespaces(namespaces, ipv6=True)
    assert len(list(NAMED_NAMESPACES.glob(f"bb-test-{os.getpid()}-*"))) == 4
    namespaces.remove()
    namespaces.remove()
    assert namespaces.count == 0
    assert list(NAMED_NAMESPACES.glob(f"bb-test-{os.getpid()}-*")) == []


@pytest.fixture
def fake_ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a shell script as `ip`."""

    def write(script: str) -> None:
        (tmp_path / "ip").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ip").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return write


def test_loopback_is_used_with_the_reason_if_namespaces_are_not_permitted(
    fake_ip: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for root in a container without CAP_NET_ADMIN."""
    monkeypatch.setattr(environment, "namespaces_unavailable_reason", lambda: "")
    fake_ip("echo Operation not permitted >&2; exit 1")
    created, reason = environment.create_environment(DemoNamespaces("bb-test-none"), loopback_reason="")
    assert not created.isolated
    assert reason == "network namespaces unavailable: ip netns add: Operation not permitted"


def test_loopback_ports_are_free_and_in_the_allowed_range() -> None:
    """Konnectivity rejects ports below 1024 and above 49151."""
    ports = environment.free_ports(8)
    assert len(set(ports)) == 8
    assert all(1024 <= port <= 49151 for port in ports)
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_signal_is_deferred_until_ip_has_ended(fake_ip: Callable[[str], None], tmp_path: Path) -> None:
    """Otherwise `ip` could create its namespace after the clean-up."""
    done = tmp_path / "done"
    fake_ip(f'kill -INT $PPID; sleep 0.2; echo "$*" >>{done}')
    with Interrupts() as interrupts, pytest.raises(Interrupted):
        DemoNamespaces("bb-test", interrupts).create("node", "node")
    assert done.read_text() == "netns add bb-test-node\n"
