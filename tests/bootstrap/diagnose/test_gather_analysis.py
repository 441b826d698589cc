"""The failing stage in a sentence, from records as bootkube writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bootbridge.bootstrap.diagnose.gather.analysis import analyse


def record(*entries: str) -> bytes:
    """`phase`, `phase stage` or `phase stage result`, written short."""
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
WELL = {"release-image": record(START, GOOD)}


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
    """Our stages and those of bootkube; an unknown stage is named, too."""
    entries = record(
        START,
        "stage start a",
        "stage end a success",
        f"stage start {stage}",
        f"stage end {stage} failure",
        BAD,
    )
    found = analyse({**WELL, "bootkube": entries})
    assert found.failed
    assert (found.service, found.stage) == ("bootkube", stage)
    assert words in found.sentence
    assert "no default route" in found.text()


def test_a_release_image_that_failed_comes_first() -> None:
    """bootkube has not even begun."""
    found = analyse({"release-image": record(START, BAD), "bootkube": record(START)})
    assert found.sentence == "release-image.service failed before its first stage."


def test_a_bootkube_that_never_ran_is_reported() -> None:
    """There is a record of release-image alone."""
    assert analyse(WELL).sentence == "bootkube.service has not started."


def test_a_successful_bootstrap_is_not_a_failure() -> None:
    """Even if it had failed before and was started again."""
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
    found = analyse({**WELL, "bootkube": again})
    assert not found.failed
    assert found.sentence == "bootkube.service succeeded."


def test_a_bootstrap_in_progress_is_not_a_failure() -> None:
    """Where it is, is said."""
    found = analyse({**WELL, "bootkube": record(START, "stage start cb-bootstrap")})
    assert not found.failed
    assert "still running in stage 'cb-bootstrap'" in found.sentence


@pytest.mark.parametrize("data", [b"", b"[", b"{}", b"null", b'["a", 3]', b"\xff"])
def test_an_invalid_record_is_reported(data: bytes) -> None:
    """A half-written one among them."""
    assert "its record is invalid" in analyse({**WELL, "bootkube": data}).sentence


def test_no_records_at_all() -> None:
    """As on kubeadm's nodes."""
    assert not analyse({}).failed
