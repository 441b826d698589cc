"""Names the failed stage in one sentence, from the records that bootkube writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.bootstrap.diagnose.gather.analysis import analyse


def record(*entries: str) -> bytes:
    """Builds a service record from entries of the form `phase`, `phase stage` or `phase stage result`."""
    return json.dumps([_entry(each) for each in entries]).encode()


def _entry(text: str) -> dict[str, Any]:
    kind, when, *rest = text.split()
    entry: dict[str, Any] = {"timestamp": "2026-01-01T00:00:00Z", "phase": f"{kind} {when}"}
    if kind == "stage":
        entry["stage"] = rest.pop(0)
    if rest:
        entry["result"] = rest[0]
    if rest == ["failure"]:
        entry |= {"errorLine": "12 main bootkube.sh", "errorMessage": "no default route"}
    return entry


START, GOOD, BAD = "service start", "service end success", "service end failure"
IMAGE_DONE = {"release-image": record(START, GOOD)}


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("konnectivity-certs", "certificates could not be made"),
        ("konnectivity-server-bootstrap", "server could not be started"),
        ("konnectivity-agent-manifest", "agents' manifests"),
        ("konnectivity-cleanup", "could not be removed"),
        ("cb-bootstrap", "control plane did not come up"),
        ("some-stage", "failed at stage 'some-stage'."),
    ],
)
def test_the_failing_stage_is_named_with_its_meaning(stage: str, words: str) -> None:
    """For our stages, those of bootkube, and unknown ones."""
    entries = record(
        START,
        "stage start a",
        "stage end a success",
        f"stage start {stage}",
        f"stage end {stage} failure",
        BAD,
    )
    found = analyse({**IMAGE_DONE, "bootkube": entries})
    assert found.failed
    assert (found.service, found.stage) == ("bootkube", stage)
    assert words in found.sentence
    assert "no default route" in found.text()


def test_a_failed_release_image_is_reported_first() -> None:
    """It runs before bootkube."""
    found = analyse({"release-image": record(START, BAD), "bootkube": record(START)})
    assert found.sentence == "release-image.service failed before its first stage."


def test_a_bootkube_that_has_not_started_is_reported() -> None:
    assert analyse(IMAGE_DONE).sentence == "bootkube.service has not started."


def test_success_after_a_failed_attempt_is_not_a_failure() -> None:
    again = record(
        START,
        "stage start a",
        "stage end a failure",
        BAD,
        START,
        "stage start a",
        "stage end a success",
        GOOD,
    )
    found = analyse({**IMAGE_DONE, "bootkube": again})
    assert not found.failed
    assert found.sentence == "bootkube.service succeeded."


def test_a_bootstrap_in_progress_is_not_a_failure() -> None:
    """The current stage is named."""
    found = analyse({**IMAGE_DONE, "bootkube": record(START, "stage start cb-bootstrap")})
    assert not found.failed
    assert "still running in stage 'cb-bootstrap'" in found.sentence


@pytest.mark.parametrize("data", [b"", b"[", b"{}", b"null", b'["a", 3]', b"\xff"])
def test_an_invalid_record_is_reported(data: bytes) -> None:
    """For example a partially written one."""
    assert "its record is invalid" in analyse({**IMAGE_DONE, "bootkube": data}).sentence


def test_a_node_without_records_has_no_failed_stage() -> None:
    """kubeadm writes none."""
    assert not analyse({}).failed


SERVER = "konnectivity-server-bootstrap"
FAILED_SERVER = (f"stage start {SERVER}", f"stage end {SERVER} failure")


@pytest.mark.parametrize(
    ("after", "words", "failed"),
    [
        (
            ["stage start cb-bootstrap", "stage end cb-bootstrap success", GOOD],
            "bootkube.service succeeded.",
            False,
        ),
        (["stage start cb-bootstrap"], "still running in stage 'cb-bootstrap'", False),
        (
            ["stage start cb-bootstrap", "stage end cb-bootstrap failure", BAD],
            "failed at stage 'cb-bootstrap'",
            True,
        ),
    ],
)
def test_a_server_that_does_not_answer_is_named_beside_the_result(
    after: list[str], words: str, failed: bool
) -> None:
    """bootkube.sh goes on without the tunnel: that stage is not where it failed, but perhaps the reason."""
    found = analyse({**IMAGE_DONE, "bootkube": record(START, *FAILED_SERVER, *after)})

    assert found.failed is failed
    assert words in found.sentence
    assert f"Stage '{SERVER}' failed before" in found.sentence
    assert "the kube-apiserver dials directly" in found.sentence
    assert "no default route" in found.text()


def test_a_server_that_answered_later_is_not_named() -> None:
    done = record(START, *FAILED_SERVER, f"stage start {SERVER}", f"stage end {SERVER} success", GOOD)

    assert analyse({**IMAGE_DONE, "bootkube": done}).sentence == "bootkube.service succeeded."


APPLY, END, CLEANUP = (f"konnectivity-{name}" for name in ("agent-apply", "apiserver-end", "cleanup"))


def failed_stage(stage: str) -> tuple[str, str]:
    return f"stage start {stage}", f"stage end {stage} failure"


@pytest.mark.parametrize(("stage", "next_stage"), [(APPLY, END), (END, CLEANUP)])
def test_bootkube_goes_on_after_a_failure_at_the_end(stage: str, next_stage: str) -> None:
    """Refused objects, or a kube-apiserver that does not end: the next stage runs, nothing has failed yet."""
    found = analyse(
        {**IMAGE_DONE, "bootkube": record(START, *failed_stage(stage), f"stage start {next_stage}")}
    )

    assert not found.failed
    assert f"still running in stage '{next_stage}'" in found.sentence
    assert f"Stage '{stage}' failed before" in found.sentence


def test_every_tolerated_failure_is_named() -> None:
    """Each stage once, although bootkube.sh tries the server twice."""
    stages = (SERVER, SERVER, APPLY, END, CLEANUP)
    entries = [entry for stage in stages for entry in failed_stage(stage)]

    found = analyse({**IMAGE_DONE, "bootkube": record(START, *entries, GOOD)})

    assert (found.failed, found.succeeded) == (False, True)
    assert [found.sentence.count(f"Stage '{stage}'") for stage in (SERVER, APPLY, END, CLEANUP)] == [1] * 4
