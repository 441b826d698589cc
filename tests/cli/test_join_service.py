"""``bootbridge join-service``: its flags become the service's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootbridge.cli import main
from bootbridge.join_service import main as service
from bootbridge.join_service.main import JoinServiceOptions
from bootbridge.join_service.manifests import JoinServiceDeployment, daemon_set
from bootbridge.join_service.measurement_secret import MeasurementSecret


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[JoinServiceOptions]:
    """Options that the service was run with, which then ended at once."""
    seen: list[JoinServiceOptions] = []

    async def serve(options: JoinServiceOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(service, "serve", serve)
    return seen


def test_without_flags_the_services_own_defaults_hold(served: list[JoinServiceOptions]) -> None:
    assert main.main(["join-service"]) == 0
    assert served == [JoinServiceOptions()]


def test_every_option_has_its_flag(served: list[JoinServiceOptions]) -> None:
    words = [
        "--kubeconfig=/k",
        "--namespace=n",
        "--host=::1",
        "--port=4433",
        "--pki=/pki",
        "--evidence=/e",
        "--audit-file=/a",
        "--health-host=0.0.0.0",
        "--health-port=9091",
    ]
    assert main.main(["join-service", *words]) == 0
    assert served == [JoinServiceOptions("/k", "n", "::1", 4433, Path("/pki"), "/e", "/a", "0.0.0.0", 9091)]


def test_what_the_daemon_set_says_is_understood(served: list[JoinServiceOptions]) -> None:
    """The manifests are rendered elsewhere; their arguments must be ours."""
    deployment = JoinServiceDeployment(
        "image", b"{}", MeasurementSecret(bytes(32), bytes(32)), evidence=b"{}"
    )
    container = daemon_set(deployment)["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][1:] == ["join-service"]
    assert main.main(["join-service", *container["args"]]) == 0
    assert served[0].evidence.endswith("issuer.json")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--port=70000"], "--port: invalid port 70000"),
        (["--health-port=-1"], "--health-port: invalid port -1"),
        (["--port=x"], "invalid int value: 'x'"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_a_wrong_flag_is_one_line(
    words: list[str], error: str, served: list[JoinServiceOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["join-service", *words]) == 1
    text = capsys.readouterr().err
    assert error in text
    assert text.count("\n") == 1
    assert served == []


def test_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["join-service", "--help"]) == 0
    assert "bootbridge-join-policy" in capsys.readouterr().out
