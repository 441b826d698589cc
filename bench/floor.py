"""A pair of HAProxy processes that forwards the same bytes over TLS: what C without multiplexing needs.

Each has one thread, as our programs have. The near one listens on a unix socket per backend port and opens
one mutual TLS connection to the far one for each connection; the far one dials the backend.
"""

import os
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from pairs import ROOT, START_SECONDS_MAX, BenchError, Certificates, Process, Processes, free_port

# Above the idle tunnels that a run holds; HAProxy reserves two descriptors for each.
CONNECTIONS_MAX = 4_000

COMMON = f"""global
    nbthread 1
    maxconn {CONNECTIONS_MAX}
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-server-options ssl-min-ver TLSv1.3
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
"""


@dataclass
class Floor:
    """The two processes; `directory` holds PORT.sock for each port of the backend."""

    near: Process
    far: Process
    directory: Path

    def cpu_seconds(self) -> float:
        return self.near.cpu_seconds() + self.far.cpu_seconds()

    def check_alive(self) -> None:
        self.near.check_alive()
        self.far.check_alive()


def find_haproxy() -> str:
    for path in (shutil.which("haproxy"), "/usr/sbin/haproxy"):
        if path and os.access(path, os.X_OK):
            return path
    raise BenchError(
        f"haproxy: command not found (run {ROOT / 'peers' / 'packages'} haproxy=haproxy as root)"
    )


def start_floor(children: Processes, certs: Certificates, backend: dict[str, str]) -> Floor:
    """Starts both and returns once a connection to each socket is accepted."""
    program = find_haproxy()
    directory = children.directory / "floor"
    directory.mkdir()
    identities = {name: _identity(certs, directory, name) for name in ("server", "agent")}
    near, far = [COMMON], [COMMON]
    for name, address in backend.items():
        port = free_port()
        socket_path = directory / f"{address.rpartition(':')[2]}.sock"
        near.append(
            f"listen {name}\n    bind unix@{socket_path}\n"
            f"    server far 127.0.0.1:{port} ssl verify required verifyhost localhost"
            f" ca-file {certs.path('ca.crt')} crt {identities['agent']}\n"
        )
        far.append(
            f"listen {name}\n    bind 127.0.0.1:{port} ssl crt {identities['server']}"
            f" ca-file {certs.path('ca.crt')} verify required\n    server backend {address}\n"
        )
    processes = []
    for title, sections in (("far", far), ("near", near)):
        path = directory / f"{title}.cfg"
        path.write_text("".join(sections))
        processes.append(children.start(f"floor {title}", [program, "-db", "-f", str(path)]))
    floor = Floor(near=processes[1], far=processes[0], directory=directory)
    for address in backend.values():
        _wait_until_listening(floor, directory / f"{address.rpartition(':')[2]}.sock")
    print(f"  floor: ready, near pid {floor.near.pid}, far pid {floor.far.pid}", flush=True)
    return floor


def _identity(certs: Certificates, directory: Path, name: str) -> Path:
    """HAProxy reads certificate and key from one file."""
    path = directory / f"{name}.pem"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"".join(Path(certs.path(f"{name}.{kind}")).read_bytes() for kind in ("crt", "key")))
    return path


def _wait_until_listening(floor: Floor, path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        floor.check_alive()
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise BenchError(f"floor: {path}: {error} after {START_SECONDS_MAX} s") from error
        time.sleep(0.05)
