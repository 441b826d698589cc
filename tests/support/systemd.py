"""The units of deploy/systemd: read as systemd reads them, or run by a real systemd in namespaces."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bootbridge.lab.cgroups import Cgroups
from bootbridge.lab.namespaces import NodeNamespaces
from bootbridge.lab.processes import start_time
from tests.support.process_program import ROOT, until

UNITS = ROOT / "deploy" / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
TIMERS = sorted(path.name for path in UNITS.glob("*.timer"))
SYSTEMD = Path("/lib/systemd/systemd")
# Where the units expect the programs.
PREFIX = "/opt/bootbridge"
PROGRAMS = {
    "bootbridge": "bootbridge.cli.main",
    "proxy-server": "bootbridge.cli.server",
    "proxy-agent": "bootbridge.cli.agent",
}


def settings(unit: str) -> dict[str, list[str]]:
    """Returns the values of each setting of a unit, in their order."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / unit).read_text().splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def environment(unit: str) -> dict[str, str]:
    """Returns the variables of the unit's environment file, as deploy/systemd has it."""
    found: dict[str, str] = {}
    for value in settings(unit).get("EnvironmentFile", []):
        text = (UNITS / Path(value.removeprefix("-")).name).read_text().replace("\\\n", "")
        for line in text.splitlines():
            name, is_variable, words = line.partition("=")
            if is_variable and not line.startswith("#"):
                found[name] = " ".join(shlex.split(words))
    return found


def command_line(unit: str) -> list[str]:
    """Returns the words of ExecStart; `$NAME` as a word becomes the words of that variable."""
    [text] = settings(unit)["ExecStart"]
    variables = environment(unit)
    return [
        part
        for word in text.split()
        for part in (shlex.split(variables[word[1:]]) if word.startswith("$") else [word])
    ]


def missing() -> str:
    """Returns why a systemd cannot be run here; empty if it can."""
    if os.geteuid() != 0:
        return "namespaces and mounts need root"
    absent = [name for name in ("systemctl", "systemd-sysusers") if shutil.which(name) is None]
    return f"missing {', '.join(absent)}: apt-get install systemd" if absent or not SYSTEMD.exists() else ""


# Only the targets that our units name: those of this machine would mount, load modules and start services.
_TARGETS = ("sysinit", "basic", "shutdown", "multi-user", "network-online", "timers", "time-set", "time-sync")
_START = f"""
for file in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do
  if [ -w "$file" ]; then echo $$ > "$file"; fi
done
exec unshare --pid --mount --cgroup --fork --kill-child sh -ec '
  mount --make-rprivate /
  mount -t proc proc /proc
  mount -t tmpfs tmpfs /lib/systemd/system
  for name in {" ".join(_TARGETS)}; do
    printf "[Unit]\\nDefaultDependencies=no\\n" > /lib/systemd/system/$name.target
  done
  mount -t tmpfs tmpfs /etc/systemd
  for scripts in /etc/init.d /etc/rc?.d; do mount -t tmpfs tmpfs $scripts; done
  mkdir -p /etc/systemd/system/service.d
  printf "[Service]\\nStandardOutput=append:/run/services.log\\nStandardError=inherit\\n" \\
    > /etc/systemd/system/service.d/log.conf
  cp {UNITS}/*.service {UNITS}/*.timer /etc/systemd/system
  mkdir -p {PREFIX}/bin {PREFIX}/python {PREFIX}/site {PREFIX}/src
  mount --bind "$1" {PREFIX}/python
  mount --bind "$2" {PREFIX}/site
  mount --bind {ROOT}/src {PREFIX}/src
  exec env container=lab {SYSTEMD} --system --unit=multi-user.target --log-target=console --show-status=no
' sh "$@"
"""


@dataclass
class RunningSystemd:
    """A systemd as process 1 of namespaces inside those of a lab node: /etc, /var and /run are its own."""

    machine: NodeNamespaces

    def run(self, *argv: str, input: bytes | None = None) -> str:
        return self.machine.run_checked(*argv, input=input).decode()

    def systemctl(self, *words: str) -> str:
        try:
            return self.run("systemctl", "--no-pager", *words)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.log}") from error

    def value(self, unit: str, name: str) -> str:
        return self.systemctl("show", f"--property={name}", "--value", unit).strip()

    @property
    def log(self) -> str:
        """Returns the output of all services."""
        return self.machine.run(["cat", "/run/services.log"]).stdout.decode()[-4000:]

    def write(self, path: str, data: bytes, mode: str = "0644", owner: str = "root") -> None:
        self.run("install", "-D", f"--mode={mode}", f"--owner={owner}", "/dev/stdin", path, input=data)

    def process_status(self, unit: str) -> dict[str, str]:
        """Returns /proc/PID/status of a unit's main process."""
        text = self.run("cat", f"/proc/{self.value(unit, 'MainPID')}/status")
        return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


@contextmanager
def running_systemd(directory: Path) -> Iterator[RunningSystemd]:
    groups = Cgroups(directory)
    node = NodeNamespaces.create("systemd", directory / "nodes" / "systemd", groups.make("systemd"))
    packages = sysconfig.get_paths()["purelib"]
    with (directory / "systemd.log").open("wb") as log:
        started = subprocess.Popen(
            node.command(["sh", "-ec", _START, "sh", sys.base_prefix, packages]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        pid = until(lambda: _descendant(started.pid, "systemd"), "systemd has started")
        systemd = RunningSystemd(NodeNamespaces("systemd", pid, start_time(pid)))
        until(lambda: systemd.machine.run(["systemctl", "show"]).returncode == 0, "systemd answers")
        for name, module in PROGRAMS.items():
            systemd.write(f"{PREFIX}/bin/{name}", _program(module).encode(), "0755")
        yield systemd
    finally:
        node.end()
        started.wait()
        assert groups.remove() == []


def _program(module: str) -> str:
    """Returns a script that runs a program with this interpreter, from paths that no unit hides."""
    python = Path(sys.executable).resolve().name
    variables: Mapping[str, str] = {
        "PYTHONHOME": f"{PREFIX}/python",
        "LD_LIBRARY_PATH": f"{PREFIX}/python/lib",
        "PYTHONPATH": f"{PREFIX}/src:{PREFIX}/site",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    code = f"import sys; from {module} import main; sys.exit(main())"
    assignments = " ".join(f"{name}={value}" for name, value in variables.items())
    return f'#!/bin/sh\n{assignments} exec {PREFIX}/python/bin/{python} -c "{code}" "$@"\n'


def _descendant(pid: int, name: str) -> int:
    """Returns the process with that name among a process and its descendants; 0 if there is none."""
    try:
        if Path(f"/proc/{pid}/comm").read_text().strip() == name:
            return pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it ended before its file was opened, or before it was read
    return next((found for child in children if (found := _descendant(int(child), name))), 0)
