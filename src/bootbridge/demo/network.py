"""Creates the demo's network namespaces and links, and removes them.

Nothing is added to the machine's own network. All links run between the demo's namespaces, so no address
collides with one in use and no packet leaves the machine.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootbridge.demo.interrupts import Interrupts

NAMED_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class NamespacesUnavailable(Exception):
    """This machine does not allow the demo to create network namespaces."""


@dataclass(frozen=True)
class NetworkContext:
    """Where programs run and sockets are opened: a named network namespace, or the machine's own if empty."""

    label: str
    namespace: str = ""

    def command(self, argv: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *argv] if self.namespace else list(argv)

    def connect(self, host: str, port: int, timeout: float) -> socket.socket:
        """Returns a TCP connection that is opened in this namespace; `host` is an IP address."""
        with self._entered():
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.settimeout(timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect((host, port))
        except BaseException:
            sock.close()
            raise
        return sock

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Enters the namespace for the block; a socket stays in the namespace in which it was created."""
        if not self.namespace:
            yield
            return
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            there = os.open(NAMED_NAMESPACES / self.namespace, os.O_RDONLY)
            try:
                _setns(there)
            finally:
                os.close(there)
            try:
                yield
            finally:
                _setns(home)
        finally:
            os.close(home)


@dataclass(frozen=True)
class VethPair:
    """A link between two namespaces; each end has a route to the peer's addresses and to nothing else."""

    ends: tuple[NetworkContext, NetworkContext]
    devices: tuple[str, str]
    addresses: tuple[tuple[str, str], ...]


class DemoNamespaces:
    """Creates namespaces and links; `remove` deletes all of them."""

    def __init__(self, prefix: str, interrupts: Interrupts | None = None) -> None:
        self._prefix = prefix
        self._interrupts = interrupts or Interrupts()
        self._created: set[str] = set()

    def create(self, name: str, label: str) -> NetworkContext:
        namespace = f"{self._prefix}-{name}"
        # Recorded first, so that `remove` knows it whenever an exception comes.
        self._created.add(namespace)
        self._ip("netns", "add", namespace)
        self._ip("-n", namespace, "link", "set", "lo", "up")
        return NetworkContext(label, namespace)

    def connect(self, pair: VethPair) -> None:
        (here, there), (device, peer) = pair.ends, pair.devices
        add = ("link", "add", "name", device, "type", "veth", "peer", "name", peer, "netns", there.namespace)
        self._ip("-n", here.namespace, *add)
        for context, name in zip(pair.ends, pair.devices, strict=True):
            self._ip("-n", context.namespace, "link", "set", "dev", name, "up")
        for address, other in pair.addresses:
            self._address(here, device, address, other)
            self._address(there, peer, other, address)

    def remove(self) -> None:
        for namespace in self.left():
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        self._created = set(self.left())

    @property
    def count(self) -> int:
        return len(self._created)

    def left(self) -> list[str]:
        """Returns the namespaces that exist now."""
        return [namespace for namespace in sorted(self._created) if (NAMED_NAMESPACES / namespace).exists()]

    def _address(self, context: NetworkContext, device: str, address: str, other: str) -> None:
        # Duplicate address detection would delay each IPv6 address by a second.
        nodad = ("nodad",) if ":" in address else ()
        self._ip("-n", context.namespace, "addr", "add", address, "peer", other, "dev", device, *nodad)

    def _ip(self, *words: str) -> None:
        # In a session of its own, so that Ctrl-C does not interrupt `ip`. Signals are deferred: an `ip` that
        # still runs during the clean-up could create a namespace after it.
        with self._interrupts.deferred():
            done = subprocess.run(
                ["ip", *words], capture_output=True, text=True, check=False, start_new_session=True
            )
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()
            action = words[2:4] if words[0] == "-n" else words[:2]
            raise NamespacesUnavailable(f"ip {' '.join(action)}: {reason[-1] if reason else 'failed'}")


def namespaces_unavailable_reason() -> str:
    """Returns why this process cannot create network namespaces; empty if it can."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "command not found: ip (package iproute2)"
    return ""


def ipv6_works() -> bool:
    """Returns whether the kernel supports IPv6 on loopback."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def _setns(namespace: int) -> None:
    # os.setns exists only since Python 3.12.
    if _libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
