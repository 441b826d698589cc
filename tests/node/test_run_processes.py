"""`node run` and `node init` as processes: exit codes, signals, and no leaked secrets."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootbridge.node.init.master_secret import MasterSecret
from tests.node.local_instance import TOKEN, LocalInstance
from tests.node.local_join_service import BOOTSTRAP_TOKEN, LocalJoinService
from tests.support.process_program import OURS, until

pytestmark = pytest.mark.slow
SECONDS = 40.0


class Command:
    """One bootbridge process with its output in a file."""

    def __init__(self, folder: Path, title: str, words: list[str]) -> None:
        self.output_path = folder / f"{title}.out"
        with self.output_path.open("wb") as output:
            self._process = subprocess.Popen(
                [OURS / "bootbridge", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.output, f"{text!r} in {self.output}", SECONDS)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def code(self) -> int:
        return self._process.wait(SECONDS)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class Processes:
    def __init__(self, instance: LocalInstance) -> None:
        self.instance = instance
        self.commands: list[Command] = []

    def node(self) -> Command:
        return self._start("node", ["node", "run", "--config", str(self.instance.configuration), "-v"])

    def init(self, *more: str) -> Command:
        return self._start(f"init-{len(self.commands)}", [*self.instance.init_arguments, *more])

    def _start(self, title: str, words: list[str]) -> Command:
        self.commands.append(Command(self.instance.folder, title, words))
        return self.commands[-1]


@pytest.fixture
def processes(instance: LocalInstance) -> Iterator[Processes]:
    processes = Processes(instance)
    yield processes
    for command in processes.commands:
        command.end()


def test_no_secret_of_an_init_is_in_arguments_logs_or_readable_files(processes: Processes) -> None:
    instance = processes.instance
    node, init = processes.node(), processes.init()
    until(lambda: instance.init_runs, "kubeadm runs", SECONDS)
    arguments = "\n".join(arguments_below(node.pid) + arguments_below(init.pid))
    assert "kubeadm" in arguments
    instance.let_kubeadm_go_on()
    assert (init.code(), node.code()) == (0, 0), node.output + init.output
    master = json.loads((instance.user / "secrets.json").read_text())["key"]
    measurement = MasterSecret.load_or_create(instance.user / "secrets.json").measurement_secret
    secrets = [instance.secret.decode(), TOKEN, master, *written(measurement), *keys_of(instance)]
    seen = arguments + instance.kubeadm_arguments + node.output + init.output
    assert "init started" in seen
    assert [secret for secret in secrets if secret in seen] == []
    assert open_files_with(secrets, instance) == []


async def test_no_secret_of_a_ticket_is_in_arguments_logs_or_readable_files(
    processes: Processes,
) -> None:
    instance = processes.instance
    service = LocalJoinService(instance)
    async with service.listening() as port:
        instance.configure(joinService={"port": port, "evidence": "none"})
        instance.write_metadata(role="worker", loadBalancer="127.0.0.1")
        node = processes.node()
        arguments = "\n".join(arguments_below(node.pid))
        assert await asyncio.to_thread(node.code) == 0, node.output
    token = BOOTSTRAP_TOKEN.partition(".")[2]
    secrets = [token, *written(service.measurement_secret), *keys_of(instance)]
    seen = arguments + instance.kubeadm_arguments + node.output
    assert " join --config" in seen
    assert "joining" in seen
    assert [secret for secret in secrets if secret in seen] == []
    assert open_files_with(secrets, instance) == []


def written(secret: bytes) -> list[str]:
    """Returns the encodings in which it might be logged."""
    return [secret.hex(), base64.b64encode(secret).decode().rstrip("="), str(secret)[2:-1]]


def keys_of(instance: LocalInstance) -> list[str]:
    """Returns one line of each private key of the instance."""
    files = (*instance.root.rglob("*.key"), *instance.root.rglob("*.pem"))
    found = {path.name: text for path in files if "PRIVATE KEY" in (text := path.read_text())}
    assert found.keys() >= {"bootbridge-serving.pem"}
    # A certificate comes before its key.
    return [text[text.rindex("-----BEGIN") :].splitlines()[1] for text in found.values()]


def arguments_below(pid: int) -> list[str]:
    """Returns the command lines of a process and its descendants from /proc."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        own = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return []
    return [own, *(line for child in children for line in arguments_below(int(child)))]


def open_files_with(secrets: list[str], instance: LocalInstance) -> list[Path]:
    files = [path for path in instance.folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    return [path for path in files if any(each.encode() in path.read_bytes() for each in secrets)]


def test_an_init_shows_its_stages_and_the_path_of_the_kubeconfig(processes: Processes) -> None:
    processes.instance.let_kubeadm_go_on()
    processes.node()
    init = processes.init()
    assert init.code() == 0, init.output
    for stage_name in ("instance", "certs", "wait-control-plane", "api-server", "join-service"):
        assert re.search(rf"^ok +[\d.]+ s  {stage_name}", init.output, re.MULTILINE), init.output
    assert f"kubectl --kubeconfig {processes.instance.kubeconfig} get nodes" in init.output


def test_json_output_of_an_init(processes: Processes) -> None:
    processes.instance.let_kubeadm_go_on()
    processes.node()
    init = processes.init("--json")
    assert init.code() == 0, init.output
    events = [json.loads(line) for line in init.output.splitlines()]
    kinds = [event["event"] for event in events if event["event"] != "waiting"]
    assert (kinds[:2], kinds[-1]) == (["started", "connected"], "succeeded")
    assert {"event": "stage", "stage": "certs", "state": "done", "text": ""} in events
    assert len(events[-1]["clusterID"]) == 64


def test_ctrl_c_leaves_the_init_running_and_prints_how_to_resume(processes: Processes) -> None:
    instance = processes.instance
    node, init = processes.node(), processes.init()
    until(lambda: instance.init_runs, "kubeadm runs", SECONDS)
    init.signal(signal.SIGINT)
    assert init.code() == 130
    assert "the init continues" in init.output
    assert "--resume" in init.output
    instance.let_kubeadm_go_on()
    again = processes.init()
    assert (again.code(), node.code()) == (0, 0), again.output
    assert instance.kubeconfig.exists()


def test_sigterm_before_the_lock_stops_at_once(processes: Processes) -> None:
    node = processes.node()
    node.wait_for("init listener started")
    node.signal(signal.SIGTERM)
    assert node.code() == 130
    assert "stopped before init or join started" in node.output
    assert not (processes.instance.root / "register").exists()


def test_sigterm_after_the_lock_waits_for_the_flow(processes: Processes) -> None:
    instance = processes.instance
    node, init = processes.node(), processes.init()
    until(lambda: instance.init_runs, "kubeadm runs", SECONDS)
    node.signal(signal.SIGTERM)
    node.wait_for("stop requested")
    instance.let_kubeadm_go_on()
    assert (init.code(), node.code()) == (0, 0), node.output


def test_a_killed_node_process_resumes_and_the_client_gets_the_result(processes: Processes) -> None:
    """Killed while kubeadm runs: the next start resets and repeats the init."""
    instance = processes.instance
    node, init = processes.node(), processes.init()
    until(lambda: instance.init_runs, "kubeadm runs", SECONDS)
    below = [int(child) for child in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()]
    node.signal(signal.SIGKILL)
    assert node.code() == -signal.SIGKILL
    for child in below:
        os.killpg(child, signal.SIGKILL)  # kubeadm, in a group of its own; a service manager does the same
    instance.let_kubeadm_go_on()
    again = processes.node()
    assert (init.code(), again.code()) == (0, 0), again.output + init.output
    assert "init resumed" in again.output
    assert " reset --force" in instance.kubeadm_arguments


def test_a_failure_is_fatal_with_advice_and_a_restart_repeats_it(processes: Processes) -> None:
    processes.instance.let_kubeadm_fail()
    node, init = processes.node(), processes.init()
    assert (init.code(), node.code()) == (1, 1)
    assert "What to do:" in init.output
    assert "Log of the instance: " in init.output
    log = processes.instance.kubeconfig.with_name("admin.conf.log").read_text()
    assert "Running pre-flight checks" in log, "kubeadm's output is complete"
    assert "the kubelet is not healthy" in log
    again = processes.node()
    assert again.code() == 1
    assert "reboot the instance" in again.output
    assert processes.instance.kubeadm_arguments.count(" init --config") == 1


def test_only_one_process_runs_at_a_time(processes: Processes) -> None:
    first = processes.node()
    first.wait_for("init listener started")
    second = processes.node()
    assert second.code() == 1
    assert "locked by another bootbridge process" in second.output
