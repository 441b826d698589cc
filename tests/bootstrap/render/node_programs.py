"""Runs a kube-apiserver beside a simulated node's shell, which lives by the node's clock.

`sleep` on the node advances its clock and waits until this program has acted on the new time. So it ends
exactly when it should, and no test waits or depends on timing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bootstrap.render.shell_node import Node

# Listens in a child process, whose arguments the node's process table shows. Ends `delay` seconds after
# `manifest` was deleted, or after the start if there is none: first the listener, `drain` seconds later the
# process.
_PROGRAM = r"""
import os, subprocess, sys, time
cluster, name, port, manifest, delay, drain, *arguments = sys.argv[1:]
LISTENER = '''
import socket, sys
listener = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("up", flush=True)
sys.stdin.readline()
listener.close()
print("closed", flush=True)
sys.stdin.readline()
'''
child = subprocess.Popen([sys.executable, "-c", LISTENER, port, *arguments],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "up\n"
alive, ack = f"{cluster}/{name}-process", f"{cluster}/followers/{name}"
os.makedirs(f"{cluster}/followers", exist_ok=True)
open(alive, "w").close()

def clock():
    words = open(f"{cluster}/uptime").read().split()
    return int(float(words[0])) if words else seen

def write(now):
    with open(ack + ".new", "w") as file: file.write(str(now))
    os.rename(ack + ".new", f"{cluster}/followers/{name}")

seen = 0
seen = clock()
ends = None if manifest else seen + float(delay)
closed = False
write(seen)
print("up", flush=True)
while True:
    now = clock()
    if ends is None and manifest and not os.path.exists(manifest): ends = now + float(delay)
    if ends is not None and now >= ends and not closed:
        child.stdin.write("close\n"); child.stdin.flush(); child.stdout.readline(); closed = True
    if closed and now >= ends + float(drain):
        child.kill(); child.wait(); os.unlink(alive); os.unlink(ack)
        with open(f"{cluster}/timeline", "a") as file: file.write(f"{now} {name}-ended\n")
        break
    if now != seen: seen = now; write(now)
    time.sleep(0.005)
"""
FOR_EVER = 1e9


@contextmanager
def kube_apiserver(
    node: Node, ends_after: float, drain: float = 0, *, known_arguments: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """Runs a kube-apiserver after cluster-bootstrap has deleted its manifest.

    Copies the bootstrap kube-apiserver of 4.6 to 5.0 (measured: 71 to 79 s with 4.20): it serves for its
    shutdown delay of 70 s, then closes its port and answers the requests in flight.
    """
    # Unique, because the machine's process table also shows the programs of other tests.
    seen = node.plan.paths.apiserver_config_seen_by_apiserver
    flag = f"--openshift-config={seen}.{node.network.name}"
    arguments = [flag] if known_arguments else []
    script = node.path(node.plan.paths.hook_script.replace("/usr/local/bin/", "/local/"))
    setting = f"BOOTBRIDGE_APISERVER_CONFIG_SEEN={seen}"
    text = script.read_text()
    assert text.count(f"{setting}\n") == 1
    script.chmod(0o755)
    script.write_text(text.replace(f"{setting}\n", f"{setting}.{node.network.name}\n"))
    yield from _running(node, "apiserver", 6443, "", ends_after, drain, "kube-apiserver", *arguments)


def _running(
    node: Node, name: str, port: int, manifest: str, ends_after: float, drain: float, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    words = [str(node.root / "cluster"), name, str(port), manifest, str(ends_after), str(drain), *arguments]
    command = node.network.command([sys.executable, "-c", _PROGRAM, *words])
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        yield program
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
        program.wait(10)
        for left in (node.root / "cluster/followers").glob(f"{name}*"):
            left.unlink()
        (node.root / f"cluster/{name}-process").unlink(missing_ok=True)
