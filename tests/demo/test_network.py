"""Namespaces: sockets open where they should, links lead to their other end only, and all of it goes."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bootbridge.demo import site
from bootbridge.demo.interrupts import Interrupted, Interrupts
from bootbridge.demo.network import NAMED_NAMESPACES, Link, Namespaces, why_no_namespaces

# Under CI they run, and fail where they cannot.
needs_namespaces = pytest.mark.skipif(
    bool(why_no_namespaces()) and os.environ.get("CI") != "true",
    reason=f"network namespaces: {why_no_namespaces()}",
)
LISTENER = "import socket; s = socket.create_server(('192.0.2.9', 8443)); print('up', flush=True); s.accept()"


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    namespaces = Namespaces(f"bb-test-{os.getpid()}")
    yield namespaces
    namespaces.remove()


@needs_namespaces
def test_a_socket_opens_in_its_place_and_we_stay_at_home(namespaces: Namespaces) -> None:
    """The peer is reached from inside; afterwards this process is where it was."""
    home = os.readlink("/proc/self/ns/net")
    near, far = namespaces.place("near", "near"), namespaces.place("far", "far")
    namespaces.connect(Link((near, far), ("a", "b"), (("192.0.2.8", "192.0.2.9"),)))
    listener = subprocess.Popen(far.command([sys.executable, "-c", LISTENER]), stdout=subprocess.PIPE)
    assert listener.stdout is not None
    assert listener.stdout.readline() == b"up\n"
    with near.connect("192.0.2.9", 8443, timeout=5) as connection:
        assert connection.getpeername() == ("192.0.2.9", 8443)
    assert os.readlink("/proc/self/ns/net") == home
    assert listener.wait(5) == 0
    listener.stdout.close()


@needs_namespaces
@pytest.mark.parametrize("address", [site.POD_IPV4, site.POD_IPV6])
def test_the_control_plane_has_no_route_to_the_pod(namespaces: Namespaces, address: str) -> None:
    """The nodes get as far as the pod's closed port, the control plane nowhere."""
    layout = site.namespaced(namespaces, ipv6=True)
    with pytest.raises(OSError) as refused:
        layout.nodes[1].place.connect(address, 8443, timeout=2)
    with pytest.raises(OSError) as unreachable:
        layout.control_plane.connect(address, 8443, timeout=2)
    assert (refused.value.errno, unreachable.value.errno) == (errno.ECONNREFUSED, errno.ENETUNREACH)


@needs_namespaces
def test_remove_takes_everything_and_may_be_repeated(namespaces: Namespaces) -> None:
    """The names are gone from the system, not only from our list."""
    site.namespaced(namespaces, ipv6=True)
    assert len(list(NAMED_NAMESPACES.glob(f"bb-test-{os.getpid()}-*"))) == 4
    namespaces.remove()
    namespaces.remove()
    assert namespaces.made == 0
    assert list(NAMED_NAMESPACES.glob(f"bb-test-{os.getpid()}-*")) == []


@pytest.fixture
def stand_in_ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A program of our own in the place of `ip`."""

    def write(script: str) -> None:
        (tmp_path / "ip").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ip").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return write


def test_a_machine_that_refuses_namespaces_gets_loopback_and_the_reason(
    stand_in_ip: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root in a container without the capability: no failure, one clear reason."""
    monkeypatch.setattr("bootbridge.demo.site.why_no_namespaces", lambda: "")
    stand_in_ip("echo Operation not permitted >&2; exit 1")
    layout, reason = site.choose(Namespaces("bb-test-none"), loopback_because="")
    assert not layout.isolated
    assert reason == "no network namespaces here: ip netns add: Operation not permitted"


def test_loopback_uses_ports_that_are_free_and_allowed() -> None:
    """The originals refuse ports below 1024 and above 49151; nobody else may listen on ours."""
    ports = site.free_ports(8)
    assert len(set(ports)) == 8
    assert all(1024 <= port <= 49151 for port in ports)
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_a_signal_waits_until_a_change_to_the_network_is_made(
    stand_in_ip: Callable[[str], None], tmp_path: Path
) -> None:
    """Were `ip` left to itself, it could make its namespace after our clean-up."""
    made = tmp_path / "made"
    stand_in_ip(f'kill -INT $PPID; sleep 0.2; echo "$*" >>{made}')
    with Interrupts() as interrupts, pytest.raises(Interrupted):
        Namespaces("bb-test", interrupts).place("node", "node")
    assert made.read_text() == "netns add bb-test-node\n"
