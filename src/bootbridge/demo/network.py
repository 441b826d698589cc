"""Network namespaces that live as long as one demo.

Nothing is ever added to the machine's own network: the links run between our namespaces only, so no
address can collide with one in use here and no packet can leave the machine.
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


class NamespacesRefused(Exception):
    """This machine does not let us make network namespaces; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where a program runs and a socket is opened: a network namespace, or the machine itself."""

    label: str
    namespace: str = ""

    def command(self, argv: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *argv] if self.namespace else list(argv)

    def connect(self, host: str, port: int, timeout: float) -> socket.socket:
        """A TCP connection as a program in this place would get it; `host` is an IP address."""
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
        """A socket stays in the namespace it was made in, so this thread need not."""
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
class Link:
    """A cable between two places; each end knows the other's address and nothing behind it."""

    ends: tuple[Place, Place]
    devices: tuple[str, str]
    addresses: tuple[tuple[str, str], ...]


class Namespaces:
    """Makes namespaces and links, and deletes them all on `remove`."""

    def __init__(self, prefix: str, interrupts: Interrupts | None = None) -> None:
        self._prefix = prefix
        self._interrupts = interrupts or Interrupts()
        self._made: set[str] = set()

    def place(self, name: str, label: str) -> Place:
        namespace = f"{self._prefix}-{name}"
        # Noted down first: whatever comes between, `remove` knows of it.
        self._made.add(namespace)
        self._ip("netns", "add", namespace)
        self._ip("-n", namespace, "link", "set", "lo", "up")
        return Place(label, namespace)

    def connect(self, link: Link) -> None:
        (here, there), (device, peer) = link.ends, link.devices
        add = ("link", "add", "name", device, "type", "veth", "peer", "name", peer, "netns", there.namespace)
        self._ip("-n", here.namespace, *add)
        for place, name in zip(link.ends, link.devices, strict=True):
            self._ip("-n", place.namespace, "link", "set", "dev", name, "up")
        for address, other in link.addresses:
            self._address(here, device, address, other)
            self._address(there, peer, other, address)

    def remove(self) -> None:
        for namespace in self.left():
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        self._made = set(self.left())

    @property
    def made(self) -> int:
        return len(self._made)

    def left(self) -> list[str]:
        """Those of ours that exist now."""
        return [namespace for namespace in sorted(self._made) if (NAMED_NAMESPACES / namespace).exists()]

    def _address(self, place: Place, device: str, address: str, other: str) -> None:
        # Nobody else is on the cable: duplicate address detection would only cost its second.
        nodad = ("nodad",) if ":" in address else ()
        self._ip("-n", place.namespace, "addr", "add", address, "peer", other, "dev", device, *nodad)

    def _ip(self, *words: str) -> None:
        # A session of its own: a Ctrl-C reaches us, and never cuts a change to the network in half. We hear
        # of it when the change is made: one that outlived our clean-up would be left.
        with self._interrupts.held():
            done = subprocess.run(
                ["ip", *words], capture_output=True, text=True, check=False, start_new_session=True
            )
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()
            action = words[2:4] if words[0] == "-n" else words[:2]
            raise NamespacesRefused(f"ip {' '.join(action)}: {reason[-1] if reason else 'failed'}")


def why_no_namespaces() -> str:
    """Empty when this process may make network namespaces, else the reason."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "the command 'ip' (iproute2) is missing"
    return ""


def ipv6_works() -> bool:
    """Whether this kernel speaks IPv6 on loopback at all."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def _setns(namespace: int) -> None:
    # os.setns exists from Python 3.12 on only.
    if _libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
