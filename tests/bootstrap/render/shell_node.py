"""Simulates an OpenShift bootstrap node: a root directory, a network namespace, and only the tools of RHCOS.

bash, coreutils, sed, jq, ip, nft and openssl are real; podman, oc, systemctl, the kubelet and the server are
fakes. Nothing else is on the PATH, and nothing is written outside the root directory. The node has its own
clock, which `sleep` advances.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.bootstrap.render import node_files
from bootbridge.demo.network import NetworkContext, namespaces_unavailable_reason
from tests.bootstrap.render import fake_kubelet, fake_programs

NEEDED = ("bash", "chroot", "ip", "jq", "mount", "nft", "openssl", "sed", "unshare")
# Under CI they run, and fail where they cannot.
_MISSING = [tool for tool in NEEDED if shutil.which(tool) is None]
needs_node = pytest.mark.skipif(
    bool(namespaces_unavailable_reason() or _MISSING) and os.environ.get("CI") != "true",
    reason=f"NOT RUN: {namespaces_unavailable_reason() or 'not found: ' + ', '.join(_MISSING)}",
)
TOOLS = (
    *("bash", "sed", "jq", "ip", "nft", "openssl"),
    # coreutils, as far as they are used
    *("base64", "cat", "chmod", "cp", "date", "env", "ln", "mkdir", "mktemp", "mv", "sha256sum"),
    *("sort", "stat", "tail", "touch", "tr", "wc"),
)
BOOT_SECONDS = 1000
# As the installer writes it: the address of this node's kube-apiserver, its CA, and the administrator's key.
LOOPBACK_KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "loopback",
    "contexts": [{"name": "loopback", "context": {"cluster": "cluster", "user": "loopback"}}],
    "clusters": [
        {
            "name": "cluster",
            "cluster": {"server": "https://localhost:6443", "certificate-authority-data": "Q0E="},
        }
    ],
    "users": [{"name": "loopback", "user": {"client-key-data": "QURNSU4gS0VZ"}}],
}
_ENTER = """
set -eu
for shared in usr dev proc; do mount --rbind "/$shared" "$ROOT/$shared"; done
mount --bind "$ROOT/local" "$ROOT/usr/local/bin"
if [ -e "$ROOT/cluster/uptime" ]; then mount --bind "$ROOT/cluster/uptime" "$ROOT/proc/uptime"; fi
exec chroot "$ROOT" /usr/bin/env -i PATH=/tools:/usr/local/bin HOME=/root "$@"
"""
_BOOTKUBE = """
set -euoE pipefail
cd /opt/openshift
. /usr/local/bin/bootstrap-service-record.sh
. /usr/local/bin/release-image.sh
. /usr/local/bin/bootbridge-bootstrap.sh
"""
_KAS_CONFIG = """\
apiServerArguments:
  allow-privileged:
  - "true"
{egress}  etcd-servers:
  - https://localhost:2379
apiVersion: kubecontrolplane.config.openshift.io/v1
kind: KubeAPIServerConfig
"""
_numbers = itertools.count()


class Network:
    """Creates a network namespace with `ip` commands. Every interface has carrier."""

    def __init__(self) -> None:
        self.name = f"bb-node-{os.getpid()}-{next(_numbers)}"
        self.processes: list[subprocess.Popen[bytes]] = []
        _run("ip", "netns", "add", self.name)
        self.ip("link set lo up")

    def ip(self, words: str) -> None:
        _run("ip", "-n", self.name, *words.split())

    def interface(self, name: str, *addresses: str) -> None:
        """Adds an interface that is up. Arguments for `ip addr add` may follow an address."""
        self.ip(f"link add {name} type veth peer name {name}-peer")
        for end in (name, f"{name}-peer"):
            self.ip(f"link set {end} addrgenmode none")
            self.ip(f"link set {end} up")
        for address in addresses:
            self.address(name, address)

    def address(self, interface: str, address: str) -> None:
        self.ip(f"addr add {address} dev {interface}" + (" nodad" if ":" in address.split()[0] else ""))

    def command(self, argv: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *argv]

    def entered(self) -> AbstractContextManager[None]:
        """Moves this thread and its child processes into the namespace."""
        return NetworkContext("node", self.name)._entered()

    def start(self, argv: Sequence[str]) -> None:
        """Starts a program in the namespace, which ends with it."""
        self.processes.append(subprocess.Popen(self.command(argv)))

    def end_processes(self) -> None:
        while self.processes:
            process = self.processes.pop()
            process.kill()
            process.wait()

    def remove(self) -> None:
        self.end_processes()
        _run("ip", "netns", "del", self.name)


class Node:
    """Holds the root directory of a bootstrap node."""

    def __init__(
        self, root: Path, network: Network, plan: Plan | None = None, *, real_clock: bool = False
    ) -> None:
        self.root = root
        self.network = network
        self.plan = plan or Plan()
        for name in ("usr", "dev", "proc", "run", "tools", "local", "cluster", "root"):
            (root / name).mkdir(parents=True)
        # Inside the node, these are /usr/local/bin and /tmp.
        (root / "tmp").mkdir(mode=0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                (root / name).symlink_to(os.readlink(f"/{name}"))
        for name in (
            "opt/openshift/manifests",
            "etc/kubernetes/manifests",
            "etc/kubernetes/bootstrap-configs",
            "var/log",
        ):
            (root / name).mkdir(parents=True)
        # openssl reads its defaults.
        if Path("/etc/ssl/openssl.cnf").exists():
            (root / "etc/ssl").mkdir()
            shutil.copy("/etc/ssl/openssl.cnf", root / "etc/ssl/openssl.cnf")
        self.offer(TOOLS)
        self._program("podman", fake_programs.PODMAN)
        self._program("oc", fake_programs.OC)
        self._program("systemctl", fake_programs.SYSTEMCTL)
        self._program("rm", fake_programs.RM)
        if real_clock:
            self.offer(["sleep", "timeout"])
        else:
            self._program("sleep", fake_programs.SLEEP)
            self._program("timeout", fake_programs.TIMEOUT)
            (root / "cluster/uptime").write_text(f"{BOOT_SECONDS}.00 0.00\n")
        (root / "local/bootstrap-service-record.sh").write_text(fake_programs.RECORDS)
        (root / "local/release-image.sh").write_text(fake_programs.RELEASE_IMAGE)
        self._kubelet_runs = False
        loopback = self.path(self.plan.paths.loopback_kubeconfig)
        loopback.parent.mkdir()
        loopback.write_text(json.dumps(LOOPBACK_KUBECONFIG))
        self.install(self.plan)
        self.render_apiserver(with_egress=True)

    def offer_programs(self, version: str) -> None:
        """Decides the programs in the image: upstream's of a version, or `bootbridge` for ours."""
        folder = self.root / "cluster/help"
        folder.mkdir(exist_ok=True)
        for program in ("proxy-server", "proxy-agent"):
            (folder / program).write_text(fake_programs.help_text(program, version))

    def install(self, plan: Plan) -> None:
        """Writes the files of an injected ignition file."""
        self.plan = plan
        self.offer_programs("bootbridge" if plan.image.is_ours else fake_programs.NEWEST)
        for path, asset in node_files.node_files(plan).items():
            # The machine's /usr is mounted over the node's, and local/ over /usr/local/bin.
            place = self.path(path.replace("/usr/local/bin/", "/local/"))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.write_bytes(asset.data)
            place.chmod(asset.mode)

    def render_apiserver(self, *, with_egress: bool) -> None:
        """Writes the output of the operator's render command, with or without the effect of our override."""
        line = f"  egress-selector-config-file:\n  - {self.plan.paths.egress_config_seen_by_apiserver}\n"
        config = self.path(self.plan.paths.apiserver_config)
        config.write_text(_KAS_CONFIG.format(egress=line if with_egress else ""))

    def offer(self, tools: Iterable[str]) -> None:
        for tool in tools:
            found = shutil.which(tool)
            assert found, f"{tool} is missing on this machine"
            (self.root / "tools" / tool).symlink_to(found)

    def without(self, tool: str) -> None:
        (self.root / "tools" / tool).unlink()

    def record_arguments(self) -> None:
        """Makes every tool append its arguments to a file before it runs."""
        for tool in (self.root / "tools").iterdir():
            if tool.is_symlink() and tool.name not in ("bash", "env"):
                real = os.readlink(tool)
                tool.unlink()
                self._program(
                    tool.name,
                    f'#!/usr/bin/bash\nprintf "%s\\n" "$@" >>/cluster/arguments\nexec {real} "$@"\n',
                )

    def _program(self, name: str, text: str) -> None:
        program = self.root / "tools" / name
        program.write_text(text)
        program.chmod(0o755)

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def command(self, script: str, env: Mapping[str, str] | None = None) -> list[str]:
        inside = [*(f"{name}={value}" for name, value in (env or {}).items()), "/usr/bin/bash", "-c", script]
        # When the first process ends, all others end, as in a systemd service.
        unshare = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
        enter = ["bash", "-c", _ENTER, "enter", *inside]
        return self.network.command(["env", f"ROOT={self.root}", *unshare, *enter])

    def run(self, script: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a script on the node. `env` is its whole environment except PATH."""
        if not self._kubelet_runs:
            self._kubelet_runs = True
            self.network.start([sys.executable, "-S", "-E", fake_kubelet.__file__, str(self.root)])
        return subprocess.run(
            self.command(script, env), capture_output=True, text=True, check=False, timeout=300
        )

    def bootkube(
        self, functions: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Calls our functions as bootkube.sh does, with its options and libraries."""
        return self.run(_BOOTKUBE + functions, env)

    def run_checked(self, functions: str, env: Mapping[str, str] | None = None) -> str:
        """Does the same, asserts success and returns the output."""
        done = self.bootkube(functions, env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def now(self) -> int:
        """Returns the node's clock, in seconds since the test started."""
        return int(float((self.root / "cluster/uptime").read_text().split()[0])) - BOOT_SECONDS

    def timeline(self) -> list[tuple[int, str]]:
        """Returns what the fakes recorded, with the seconds since the test started."""
        path = self.root / "cluster/timeline"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[0]) - BOOT_SECONDS, line.partition(" ")[2]) for line in lines]

    def started_units(self) -> list[str]:
        path = self.root / "cluster/started-units"
        return path.read_text().splitlines() if path.exists() else []

    def run_unit(self, path: str) -> subprocess.CompletedProcess[str]:
        """Runs the program of a unit, as systemd does."""
        text = self.path(path).read_text()
        command = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        return self.run(f"cd /opt/openshift && exec {command.removeprefix('ExecStart=')}")

    def reboot(self) -> None:
        """Clears /run, and runs the units that are enabled, as a boot does."""
        for path in (self.root / "run").iterdir():
            path.unlink() if path.is_file() else shutil.rmtree(path)
        for link in self.path("/etc/systemd/system/multi-user.target.wants").glob("*"):
            self.run_unit(f"/etc/systemd/system/{link.name}")

    def records(self) -> list[str]:
        """Returns the stages recorded so far, and their results."""
        path = self.root / "cluster/records"
        return path.read_text().splitlines() if path.exists() else []

    def calls(self, program: str) -> list[str]:
        path = self.root / f"cluster/{program}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Returns mode and content of every file on the node, except the test's."""
        own = ("opt", "etc", "run", "var", "tmp")
        return {
            f"/{path.relative_to(self.root)}": (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
            for top in own
            for path in sorted((self.root / top).rglob("*"))
            if path.is_file() and "var/log/pods" not in str(path)
        }


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
