"""Fakes the kubelet and the server on a simulated bootstrap node: `fake_kubelet.py ROOT`, in its network.

Starts the server of the static pod, restarts it when its manifest changes, and ends it when the manifest is
gone. Copies these behaviours:

* the kubelet (all releases): a container that ends is started again, and start N writes N.log below
  /var/log/pods/NAMESPACE_NAME-NODE_UID/CONTAINER. The real delay between starts is 10 s, doubled up to 5 min;
  here it is 0.1 s.
* proxy-server v0.0.30 (payloads of 4.11 to 4.13, and of 4.14 before 2023-12-01) and later: ends at an unknown
  flag, prints it, then all flags; health on every interface without --health-bind-address; replaces an
  existing socket.

Files below /cluster change it: `kubelet-absent` (starts nothing), `kubelet-late` (sees a changed manifest
three seconds of the node's clock later; the real one reads its directory every 20 s at the latest),
`server-crashes` (the server prints this text and ends), `server-silent` (listens, but answers no request),
`server-socketless` (answers, but has no socket), `server-stays` (seconds of the node's clock that it goes
on after its manifest is gone).

Writes `server-lacks-flag` while the server ends at an unknown flag: it will never answer, so `sleep` on the
node advances the clock then (fake_programs.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import sys
import time
from pathlib import Path

POD = Path("/etc/kubernetes/manifests/konnectivity-server-pod.yaml")
LOGS = Path("/var/log/pods/kube-system_konnectivity-server-node_0123/konnectivity-server")
CLUSTER = Path("/cluster")
LACKS_FLAG = CLUSTER / "server-lacks-flag"
RESTART_SECONDS = 0.1
POLL_SECONDS = 0.01
LATE_SECONDS = 3
_FLAG = re.compile(r"^\s*- --([a-z-]+)=(.*)$", re.MULTILINE)


class ServerError(Exception):
    """The server's last words."""


class Server:
    """The listeners of one running server."""

    def __init__(self, manifest: str) -> None:
        crash = CLUSTER / "server-crashes"
        if crash.exists():
            raise ServerError(crash.read_text())
        flags = dict(_FLAG.findall(manifest))
        known = (CLUSTER / "help/proxy-server").read_text()
        for flag in flags:
            if not re.search(rf"^ *--{flag}\b", known, re.MULTILINE):
                LACKS_FLAG.touch()
                raise ServerError(f"Error: unknown flag: --{flag}\n{known}\n")
        LACKS_FLAG.unlink(missing_ok=True)
        self._selector = selectors.DefaultSelector()
        self._open: list[socket.socket] = []
        self._socket = Path(flags["uds-name"])
        try:
            self._listen(socket.AF_INET6, ("::", int(flags["agent-port"])))
            host = flags.get("health-bind-address", "::")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listen(family, (host, int(flags["health-port"])), answers=True)
            self._socket.unlink(missing_ok=True)
            if not (CLUSTER / "server-socketless").exists():
                self._listen(socket.AF_UNIX, str(self._socket))
        except OSError as error:
            self.close()
            raise ServerError(f"error: listen: {error.strerror}\n") from error

    def _listen(self, family: int, address: object, *, answers: bool = False) -> None:
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._open.append(listener)
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen()
        self._selector.register(listener, selectors.EVENT_READ, answers)

    def serve(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                connection, _ = key.fileobj.accept()  # type: ignore[union-attr]
                if (CLUSTER / "server-silent").exists():
                    self._open.append(connection)
                    continue
                with connection, contextlib.suppress(OSError):
                    if key.data:
                        _answer(connection)

    def close(self) -> None:
        for each in self._open:
            each.close()
        self._selector.close()


def _answer(connection: socket.socket) -> None:
    connection.settimeout(1)
    request = b""
    while b"\r\n\r\n" not in request:
        more = connection.recv(4096)
        if not more:
            return
        request += more
    path = request.split(b" ")[1]
    # /readyz: no agent is connected.
    status, body = (b"200 OK", b"ok") if path == b"/healthz" else (b"500 Error", b"not ready")
    connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


def main() -> None:
    os.chroot(sys.argv[1])
    os.chdir("/")
    running: Server | None = None
    manifest, starts, gone_since, changed_at, seen = "", 0, 0.0, 0.0, 0.0
    while True:
        now = _now(seen)
        wanted = _manifest()
        if not wanted and running:
            gone_since = gone_since or now
            if now - gone_since < _stay():
                wanted = manifest
        else:
            gone_since = 0.0
        if running and wanted not in ("", manifest) and (CLUSTER / "kubelet-late").exists():
            changed_at = changed_at or now
            if now - changed_at < LATE_SECONDS:
                wanted = manifest
        if running and wanted != manifest:
            running.close()
            running = None
        if wanted and not running:
            manifest = wanted
            LOGS.mkdir(parents=True, exist_ok=True)
            log = LOGS / f"{starts}.log"
            starts += 1
            try:
                running = Server(manifest)
                log.write_text(_logged("listening\n"))
            except ServerError as error:
                log.write_text(_logged(str(error)))
                time.sleep(RESTART_SECONDS)
        if now != seen:
            seen = now
            _follow(now)
        if running:
            running.serve(POLL_SECONDS)
        else:
            time.sleep(POLL_SECONDS)


def _manifest() -> str:
    if (CLUSTER / "kubelet-absent").exists():
        return ""
    try:
        return POD.read_text()
    except FileNotFoundError:
        return ""


def _now(last: float) -> float:
    """Returns the time on the node's clock."""
    if not (CLUSTER / "uptime").exists():
        return time.monotonic()
    words = (CLUSTER / "uptime").read_text().split()
    return float(words[0]) if words else last


def _follow(now: float) -> None:
    """Tells `sleep` on the node that this program has acted on this time."""
    if (CLUSTER / "uptime").exists():
        (CLUSTER / "followers").mkdir(exist_ok=True)
        new = CLUSTER / "kubelet-time"
        new.write_text(str(int(now)))
        new.rename(CLUSTER / "followers/kubelet")


def _stay() -> float:
    path = CLUSTER / "server-stays"
    return float(path.read_text()) if path.exists() else 0.0


def _logged(text: str) -> str:
    """Returns the lines in the format of CRI logs."""
    return "".join(f"2026-01-01T00:00:00.0Z stderr F {line}\n" for line in text.splitlines())


if __name__ == "__main__":
    main()
