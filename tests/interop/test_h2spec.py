"""h2spec, the HTTP/2 conformance tool, against every port of ours that speaks HTTP/2."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process_forwarder import Forwarder
from tests.support.process_program import PEERS
from tests.support.process_tunnels import frontend_socket
from tests.support.tunnel_programs import Programs

pytestmark = [pytest.mark.interop, pytest.mark.slow]

H2SPEC_SECONDS_MAX = 300
# One case asks for more streams than we allow, thousands: more than its own 2 s of work on a busy machine.
CASE_SECONDS_MAX = "10"
CASES_MIN = 140  # a run of fewer cases has not tested what we promise
# h2spec builds this frame for the default limit of 16 KiB, regardless of the server's SETTINGS. We
# advertise 1 MiB, so the frame is legal; headers that do exceed the limit are tried beside it.
FRAME_LIMIT_CASE = "http2/4.2 Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE"
BEYOND_THE_LIMIT = ("http2/4.2/3", "--max-header-length", "300000")


class Report:
    """The cases of one run: all that were tried, and those that failed with what was expected."""

    def __init__(self, path: Path) -> None:
        self.cases = 0
        self.failed: dict[str, str] = {}
        for case in ElementTree.parse(path).iter("testcase"):
            self.cases += 1
            trouble = next((found for found in case if found.tag in ("failure", "error")), None)
            if trouble is not None:
                name = f"{case.get('package')} {case.get('classname')}"
                self.failed[name] = "".join(trouble.itertext()).strip()


def h2spec(folder: Path, port: int, *flags: str) -> Report:
    """Run every case, the strict ones too."""
    report = folder / "h2spec.xml"
    subprocess.run(
        [
            str(PEERS / "h2spec"),
            "--strict",
            "--timeout",
            CASE_SECONDS_MAX,
            "-p",
            str(port),
            "-j",
            str(report),
            *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=H2SPEC_SECONDS_MAX,
        check=False,
    )
    return Report(report)


@pytest.fixture(params=["unix socket", "TCP with mutual TLS"])
def frontend_port(request: pytest.FixtureRequest, programs: Programs) -> Iterator[int]:
    """A plain TCP port that leads to a gRPC frontend: h2spec has no client certificate."""
    server = programs.server(mode="grpc", tcp=request.param != "unix socket")
    forwarder = Forwarder(lambda: frontend_socket(server, "h2"))
    yield forwarder.port
    forwarder.close()
    assert server.alive


def check(folder: Path, port: int, *flags: str) -> None:
    report = h2spec(folder, port, *flags)
    assert set(report.failed) <= {FRAME_LIMIT_CASE}, report.failed
    assert report.cases >= CASES_MIN
    beyond = h2spec(folder, port, *flags, *BEYOND_THE_LIMIT)
    assert (beyond.cases, beyond.failed) == (1, {})


def test_the_agent_port_conforms_to_http2(programs: Programs) -> None:
    """H2spec shows no client certificate, so this server asks for none."""
    server = programs.server(flags={"cluster-ca-cert": None, "insecure-agents": True})
    check(programs.folder, server.agent_port, "-t", "-k")
    assert server.alive


def test_the_grpc_frontend_conforms_to_http2(programs: Programs, frontend_port: int) -> None:
    """The same cases, on both kinds of frontend."""
    check(programs.folder, frontend_port)
