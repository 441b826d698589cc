"""Start of the join service: invalid options are errors, missing dependencies are waited for."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest

from bootbridge.errors import OperatorError
from bootbridge.join_service import main
from bootbridge.join_service.audit import open_audit
from bootbridge.join_service.main import JoinServiceOptions, retry_until_available, run
from bootbridge.join_service.measurement_secret import MeasurementSecret
from bootbridge.kube.errors import KubeUnreachable
from tests.join_service.environment import MEASUREMENT
from tests.kube.conftest import free_port as free_port
from tests.kube.conftest import running, until


async def test_an_error_of_a_dependency_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main, "PAUSE_SECONDS_MIN", 0.0)
    errors = [KubeUnreachable("no route")] * 5

    async def attempt() -> str:
        if errors:
            raise errors.pop()
        return "there"

    assert await retry_until_available("the API server", attempt) == "there"
    assert caplog.text.count("waiting for dependency") == 1


async def test_without_a_cluster_it_is_healthy_but_not_ready(tmp_path: Path, free_port: int) -> None:
    """Then Kubernetes neither restarts it nor routes requests to it."""
    options = JoinServiceOptions(
        kubeconfig=str(tmp_path / "not yet"), audit_file=str(tmp_path / "audit"), health_port=free_port
    )

    async def status(path: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        return int(line.split()[1])

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", free_port)) == 0

    async with running(run(options)):
        await until(listens)
        assert await status("/healthz") == 200
        assert await status("/readyz") == 503


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"carrier-pigeon": {}}'])
async def test_an_invalid_evidence_file_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "evidence.yaml"
    path.write_text(content)
    with pytest.raises(OperatorError):
        await run(JoinServiceOptions(evidence=str(path)))


def test_the_audit_file_is_appended_to_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for word in (b"one\n", b"two\n"):
        writer = open_audit(str(path), lambda: 0.0)
        writer.write(word)
        assert writer.flush()
    assert path.read_text() == "one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_unwritable_audit_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="--audit-file"):
        open_audit(str(tmp_path / "missing" / "audit.log"), lambda: 0.0)


class TestMeasurementSecret:
    def test_round_trip_through_the_manifest(self) -> None:
        assert MeasurementSecret.load(MEASUREMENT.manifest("kube-system")) == MEASUREMENT

    @pytest.mark.parametrize(
        "data",
        [
            {},
            {"measurementSecret": "AAAA"},
            {"measurementSecret": "?", "measurementSalt": "?"},
            {"measurementSecret": "AAAA", "measurementSalt": "AAAA"},
        ],
    )
    def test_an_invalid_secret_is_an_error(self, data: dict[str, str]) -> None:
        with pytest.raises(OperatorError, match="bootbridge-measurement"):
            MeasurementSecret.load({"data": data})
