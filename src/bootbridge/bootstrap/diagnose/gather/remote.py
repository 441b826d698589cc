"""Collects from a bootstrap node over ssh: sends a script, receives a tar archive; the node needs no Python.

Uses the system's OpenSSH, so that settings in ~/.ssh/config such as jump hosts apply. The installer's key
is in a private directory only while ssh runs.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import IO

from bootbridge.bootstrap.diagnose.gather import node_sources
from bootbridge.bootstrap.diagnose.gather.bundle import FILE_BYTES_MAX, LogBundle
from bootbridge.bootstrap.diagnose.gather.host_keys import HostKeys, refusal
from bootbridge.bootstrap.diagnose.gather.install_dir import SshKey
from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.common.files import Asset, write_file
from bootbridge.errors import OperatorError

CONNECT_SECONDS_MAX = 15
REMOTE_BYTES_MAX = 512 << 20
MEMBERS_MAX = 20_000
RECORD_PREFIX = "node/services/"
SSH_FAILED = 255


@dataclass(frozen=True)
class Login:
    """User, port and key for ssh; the key's content is never part of a command line."""

    user: str = "core"
    port: int = 22
    key: SshKey | None = None
    key_file: Path | None = None
    host_keys: HostKeys = field(default_factory=HostKeys)


class UnreachableNodeError(OperatorError):
    """ssh could not connect or log in."""


class HostKeyRefusedError(UnreachableNodeError):
    """ssh connected, and the node's host key is not one that it accepts."""


def script(plan: Plan) -> bytes:
    """Returns the script for the node: settings from the plan, then the functions."""
    settings = {
        "STATE": plan.paths.state,
        "RECORDS": node_sources.RECORDS,
        "RECEIPT": plan.paths.receipt,
        "ASSETS": " ".join(
            (
                plan.paths.egress_config,
                plan.paths.server_pod,
                plan.paths.hook_script,
                plan.paths.cleanup_unit,
                plan.paths.cleanup_retry_unit,
                plan.paths.apiserver_config,
                plan.paths.namespace_manifest,
                plan.paths.secret_manifest,
                plan.paths.role_manifest,
                plan.paths.role_binding_manifest,
                plan.paths.daemonset_manifest,
            )
        ),
        "CONTAINERS": f"{plan.server_pod_name} kube-apiserver bootstrap-kube-apiserver {plan.daemonset_name}",
        "UNITS": " ".join(node_sources.UNITS),
        "KUBECONFIGS": f"{plan.paths.loopback_kubeconfig} {plan.paths.kubeconfig}",
        "NAMESPACE": plan.namespace,
        "AGENT_SELECTOR": f"app={plan.daemonset_name}",
        "HEALTH_PORT": str(plan.ports.server_health),
        "ADMIN_PORT": str(plan.ports.server_admin),
        "FILE_BYTES_MAX": str(FILE_BYTES_MAX),
        "LOG_LINES": node_sources.LOG_LINES,
        "COMMAND_SECONDS_MAX": f"{node_sources.COMMAND_SECONDS_MAX:g}",
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    functions = resources.files("bootbridge.bootstrap.diagnose.gather").joinpath("collect.sh").read_text()
    return ("#!/bin/sh\n" + "\n".join(lines) + "\n\n" + functions).encode()


def collect(
    bundle: LogBundle,
    plan: Plan,
    addresses: Sequence[str],
    login: Login,
    seconds: float,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, bytes]:
    """Collects from the first address that accepts us; returns the stage records by service."""
    failures = []
    hint = f"check the address (--bootstrap), the key (--key), and that TCP {login.port} is open to here"
    with _private_folder() as folder:
        for address in addresses:
            report(address)
            try:
                return _from(bundle, script(plan), _command(address, login, folder), seconds)
            except UnreachableNodeError as error:
                failures.append(f"{address}: {error.args[0]}")
                hint = error.hint or hint
            finally:
                login.host_keys.store_accepted(folder)
    raise UnreachableNodeError("; ".join(failures), subject="ssh", hint=hint)


def _command(address: str, login: Login, folder: Path) -> list[str]:
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_SECONDS_MAX),
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "RequestTTY": "no",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
        "LogLevel": "ERROR",
        **login.host_keys.options(folder),
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    if key := _key_path(login, folder):
        words += ["-o", "IdentitiesOnly=yes", "-i", str(key)]
    shell = "sh -s" if login.user == "root" else "sudo -n sh -s"
    return ["ssh", *words, "-p", str(login.port), "-l", login.user, "--", address, shell]


def _key_path(login: Login, folder: Path) -> Path | None:
    if login.key_file:
        return login.key_file
    if login.key is None:
        return None
    path = folder / "key"
    if not path.exists():
        write_file(path, Asset(login.key.pem, 0o600))
    return path


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A private temporary directory; removed at the end, also on SIGTERM and SIGHUP."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = (
        {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)} if in_main else {}
    )
    try:
        with tempfile.TemporaryDirectory(prefix="bootbridge-") as folder:
            yield Path(folder)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from(bundle: LogBundle, text: bytes, argv: list[str], seconds: float) -> dict[str, bytes]:
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            hint = "install the OpenSSH client"
            raise OperatorError(f"cannot run ssh: {error.strerror}", subject="ssh", hint=hint) from error
        watchdog = threading.Timer(seconds, process.kill)
        watchdog.daemon = True  # an interrupt before it is cancelled must not keep the program alive
        try:
            watchdog.start()
            records, count = _exchanged(bundle, process, text)
        finally:
            in_time = watchdog.is_alive()
            watchdog.cancel()
            process.kill()
            process.wait()
        return _judged(records, count, process.returncode, in_time, _lines(errors), seconds)


def _exchanged(
    bundle: LogBundle, process: subprocess.Popen[bytes], text: bytes
) -> tuple[dict[str, bytes], int]:
    """Sends the script and receives the archive; what arrived before an error is kept."""
    assert process.stdin
    assert process.stdout
    records: dict[str, bytes] = {}
    count = 0
    try:
        process.stdin.write(text)
        process.stdin.close()
        for name, data in _members(process.stdout):
            count += 1
            bundle.add(name, data)
            if name.startswith(RECORD_PREFIX) and name.endswith(".json"):
                records[name.removeprefix(RECORD_PREFIX).removesuffix(".json")] = data
        process.wait()
    except (BrokenPipeError, tarfile.TarError, EOFError, OSError):
        pass
    return records, count


def _members(stream: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields regular files, within limits."""
    total = 0
    with tarfile.open(fileobj=stream, mode="r|gz") as tar:
        for number, member in enumerate(tar):
            total += member.size
            if number > MEMBERS_MAX or total > REMOTE_BYTES_MAX:
                return
            if member.isfile() and member.size <= 2 * FILE_BYTES_MAX:
                file = tar.extractfile(member)
                yield member.name.removeprefix("./"), file.read() if file else b""


def _lines(errors: IO[bytes]) -> list[str]:
    errors.seek(0)
    lines = errors.read(1 << 16).decode("utf-8", "replace").split("\n")
    return [line.strip()[:300] for line in lines if line.strip()]


def _judged(
    records: dict[str, bytes], count: int, code: int | None, in_time: bool, lines: list[str], seconds: float
) -> dict[str, bytes]:
    if count:
        return records
    if not in_time:
        raise UnreachableNodeError(f"timed out after {seconds:g}s")
    message = lines[-1] if lines else ""
    if code == SSH_FAILED:
        if refused := refusal("\n".join(lines)):
            raise HostKeyRefusedError(refused[0], hint=refused[1])
        raise UnreachableNodeError(message or "ssh failed")
    if "password is required" in message or "sudo" in message:
        raise OperatorError(
            f"sudo failed on the node: {message}",
            subject="--user",
            hint="give a user with sudo rights, or root",
        )
    raise OperatorError(f"the node sent no data: {message or f'exit code {code}'}", subject="ssh")
