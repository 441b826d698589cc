"""A software TPM 2.0 (swtpm) per test, with separate state and socket.

A test module takes it up with `pytest_plugins = ["tests.support.swtpm"]` and marks its tests `slow`;
the fixture `new_chip` starts as many as are wanted. Without the programs they are NOT RUN, aloud.
(PYTEST_DONT_REWRITE: they import from here before they name it a plugin, which is too late for that.)
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pytest
from cryptography import x509

from bootbridge.trust.tpm.device import TpmDevice
from tests.conftest import NOT_RUN
from tests.support.process_program import free_port, until

NewChip = Callable[..., "Swtpm"]
NEEDED = {"swtpm": "swtpm", "swtpm_setup": "swtpm-tools", "tpm2_quote": "tpm2-tools"}


def missing() -> str:
    """Returns which programs for tests with a TPM are missing; empty if none."""
    lacking = sorted(package for program, package in NEEDED.items() if not shutil.which(program))
    return f"missing {', '.join(lacking)}: apt-get install {' '.join(lacking)}" if lacking else ""


@pytest.fixture(scope="session")
def swtpm_programs(request: pytest.FixtureRequest) -> None:
    if lack := missing():
        request.config.stash[NOT_RUN].append(f"swtpm: tests with a TPM NOT RUN, {lack}")
        pytest.skip(lack)


@pytest.fixture
def new_chip(swtpm_programs: None, tmp_path: Path) -> Iterator[NewChip]:
    """Starts TPMs: `new_chip()`, `new_chip(tcp=False)`."""
    with ExitStack() as chips:

        def new(*, tcp: bool = True, start: bool = True) -> Swtpm:
            number = len(list(tmp_path.glob("chip-*")))
            chip = chips.enter_context(Swtpm(tmp_path / f"chip-{number}", tcp=tcp))
            return chip.start() if start else chip

        yield new


def _adjacent_ports() -> int:
    """Returns the lower of two adjacent ports: tpm2-tools expect swtpm's control channel on the upper one."""
    upper = free_port()
    while True:
        lower = free_port()
        if upper == lower + 1:
            return lower
        upper = lower


class Swtpm:
    """One emulated TPM. `power_cycle` keeps NV and clears the PCRs, as a reboot does."""

    def __init__(self, folder: Path, *, tcp: bool = True) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._tcp = tcp
        if tcp:
            port = _adjacent_ports()
            self.address = f"tcp:127.0.0.1:{port}"
            self._channels = f"type=tcp,port={port}", f"type=tcp,port={port + 1}"
        else:
            path = folder / "swtpm.sock"
            self.address = f"unix:{path}"
            self._channels = f"type=unixio,path={path}", f"type=unixio,path={path}.ctrl"
        self.device = TpmDevice(self.address)

    def __enter__(self) -> Swtpm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def manufacture(self) -> x509.Certificate:
        """Installs an endorsement certificate and returns the certificate of its CA."""
        authority = self.folder / "authority"
        authority.mkdir()
        settings = self.folder / "swtpm-localca.conf"
        settings.write_text(
            f"statedir = {authority}\nsigningkey = {authority}/signkey.pem\n"
            f"issuercert = {authority}/issuercert.pem\ncertserial = {authority}/certserial\n"
        )
        options = self.folder / "swtpm-localca.options"
        options.write_text("--platform-manufacturer Test\n--platform-version 1\n--platform-model Test\n")
        tools = self.folder / "swtpm_setup.conf"
        tools.write_text(
            f"create_certs_tool = {shutil.which('swtpm_localca')}\n"
            f"create_certs_tool_config = {settings}\ncreate_certs_tool_options = {options}\n"
        )
        command = ["swtpm_setup", "--tpm2", "--tpmstate", str(self.state), "--config", str(tools)]
        # By default swtpm_setup also writes to the home directory of the user.
        surroundings = {**os.environ, "XDG_CONFIG_HOME": str(self.folder), "HOME": str(self.folder)}
        made = subprocess.run(
            [*command, "--create-ek-cert", "--overwrite"],
            capture_output=True,
            text=True,
            env=surroundings,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        return x509.load_pem_x509_certificate((authority / "issuercert.pem").read_bytes())

    def start(self) -> Swtpm:
        server, control = self._channels
        command = ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={self.state}", "--server", server]
        command += ["--ctrl", control, "--flags", "not-need-init,startup-clear"]
        with (self.folder / "swtpm.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._listens, f"swtpm listens at {self.address}")
        return self

    def power_cycle(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def tool(self, *command: str) -> str:
        """Runs one of tpm2-tools against this TPM, which must not be in use."""
        port = self.address.rpartition(":")[2]
        surroundings = {**os.environ, "TPM2TOOLS_TCTI": f"swtpm:host=127.0.0.1,port={port}"}
        ran = subprocess.run(
            command, capture_output=True, text=True, env=surroundings, cwd=self.folder, check=False
        )
        assert ran.returncode == 0, f"{' '.join(command)}: {ran.stderr}{ran.stdout}"
        return ran.stdout

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "swtpm.log").read_text()
        try:
            if self._tcp:
                socket.create_connection(("127.0.0.1", int(self.address.rpartition(":")[2]))).close()
            else:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(self.address.removeprefix("unix:"))
        except OSError:
            return False
        return True
