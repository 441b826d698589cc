"""h2spec, the HTTP/2 conformance tool, against every port of ours that speaks HTTP/2."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process_forwarder import Forwarder
from tests.support.process_program import PEERS
from tests.support.process_site import Site
from tests.support.process_tunnels import frontend_socket

pytestmark = [pytest.mark.interop, pytest.mark.slow]

H2SPEC_SECONDS_MAX = 300
CASES_MIN = 140  # a run of fewer cases has not tested what we promise


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
        [str(PEERS / "h2spec"), "--strict", "-p", str(port), "-j", str(report), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=H2SPEC_SECONDS_MAX,
        check=False,
    )
    return Report(report)


@pytest.fixture(params=["unix socket", "TCP with mutual TLS"])
def frontend_port(request: pytest.FixtureRequest, site: Site) -> Iterator[int]:
    """A plain TCP port that leads to a gRPC frontend: h2spec has no client certificate."""
    server = site.server(mode="grpc", tcp=request.param != "unix socket")
    forwarder = Forwarder(lambda: frontend_socket(server, "h2"))
    yield forwarder.port
    forwarder.close()
    assert server.alive


def test_the_agent_port_conforms_to_http2(site: Site) -> None:
    """h2spec shows no client certificate, so this server asks for none."""
    server = site.server(flags={"cluster-ca-cert": None, "insecure-agents": True})
    report = h2spec(site.folder, server.agent_port, "-t", "-k")
    assert report.failed == {}
    assert report.cases >= CASES_MIN
    assert server.alive


def test_the_grpc_frontend_conforms_to_http2(site: Site, frontend_port: int) -> None:
    report = h2spec(site.folder, frontend_port)
    assert report.failed == {}
    assert report.cases >= CASES_MIN
