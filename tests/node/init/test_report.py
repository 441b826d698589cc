"""The output of an init: text with durations, or JSON."""

from __future__ import annotations

import io
import json

import pytest

from bootbridge.common.progress import Progress
from bootbridge.node.init.messages import StageEvent
from bootbridge.node.init.report import InitReport, JsonReport, TextReport
from bootbridge.trust.evidence import AttestedPeer

PEER = AttestedPeer("tpm", "tpm:sha256:ab", {"pcr15": "00"}, ("PCR 4 is 01, expected 02",))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def text(clock: Clock, shown: io.StringIO) -> TextReport:
    return TextReport(Progress(shown, clock=clock, environment={}), shown)


def test_each_stage_is_one_line_with_its_duration(text: TextReport, clock: Clock, shown: io.StringIO) -> None:
    clock.now = 1.5
    text.connected(PEER)
    text.stage(StageEvent("certs", "started"))
    clock.now = 4.0
    text.stage(StageEvent("certs", "done"))
    assert shown.getvalue().splitlines() == [
        "ok      1.5 s  instance                  verified by tpm:sha256:ab",
        "               warning: PCR 4 is 01, expected 02",
        "ok      2.5 s  certs",
    ]


def test_the_reason_of_a_wait_is_shown(text: TextReport, clock: Clock, shown: io.StringIO) -> None:
    text.stage(StageEvent("etcd", "started"))
    text.stage(StageEvent("etcd", "output", "waiting for the kubelet"))
    clock.now = 3.0
    text.tick()
    assert shown.getvalue() == "        3.0 s  etcd                      waiting: waiting for the kubelet\n"


def test_a_failed_stage_shows_its_last_output(text: TextReport, shown: io.StringIO) -> None:
    text.stage(StageEvent("etcd", "started"))
    text.stage(StageEvent("etcd", "output", "no space left"))
    text.stage(StageEvent("etcd", "failed"))
    assert shown.getvalue().startswith("FAIL")
    assert "no space left" in shown.getvalue()


def test_a_reconnect_is_not_shown_as_a_new_instance(text: TextReport, shown: io.StringIO) -> None:
    text.connected(PEER)
    text.connected(PEER)
    assert shown.getvalue().count("verified by") == 1
    assert "reconnected" in shown.getvalue()


def test_a_failure_shows_the_fix_and_the_log_file(text: TextReport, shown: io.StringIO) -> None:
    text.failed("kubeadm broke", "reboot it", "admin.conf.log")
    assert shown.getvalue().splitlines() == [
        "",
        "FAIL Init failed: kubeadm broke",
        "     What to do: reboot it",
        "     Log of the instance: admin.conf.log",
    ]


def test_control_sequences_of_an_instance_are_escaped(text: TextReport, shown: io.StringIO) -> None:
    text.stage(StageEvent("etcd\r\n", "started"))
    text.stage(StageEvent("etcd", "failed", "one\ntwo\x1b]0;title\x07"))
    assert shown.getvalue().count("\n") == 1
    assert "\x1b" not in shown.getvalue()
    assert "\x07" not in shown.getvalue()


def test_json_output_has_one_object_per_event(shown: io.StringIO) -> None:
    report: InitReport = JsonReport(shown)
    report.started("id")
    report.waiting("Connection refused")
    report.connected(PEER)
    report.stage(StageEvent("certs", "output", "one\ntwo"))
    report.tick()
    report.succeeded(b"\xab", "admin.conf")
    report.failed("broke", "fix it", "")
    assert [json.loads(line) for line in shown.getvalue().splitlines()] == [
        {"event": "started", "initID": "id"},
        {"event": "waiting", "reason": "Connection refused"},
        {
            "event": "connected",
            "kind": "tpm",
            "identity": "tpm:sha256:ab",
            "facts": {"pcr15": "00"},
            "warnings": ["PCR 4 is 01, expected 02"],
        },
        {"event": "stage", "stage": "certs", "state": "output", "text": "one\ntwo"},
        {"event": "succeeded", "clusterID": "ab", "kubeconfig": "admin.conf"},
        {"event": "failed", "reason": "broke", "advice": "fix it", "log": ""},
    ]


def test_control_sequences_are_escaped_in_json_too(shown: io.StringIO) -> None:
    JsonReport(shown).stage(StageEvent("certs", "output", "\x9b31m\u202e\x1b[2J"))
    assert shown.getvalue().rstrip("\n").isprintable()
    assert json.loads(shown.getvalue())["text"] == "\x9b31m\u202e\x1b[2J"
