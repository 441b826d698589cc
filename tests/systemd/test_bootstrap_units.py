"""The units of a bootstrap node, run by a real systemd: what they stop, outlive, and wait for.

Their program is a script that records its calls: tests/bootstrap/render runs the real one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bootbridge.bootstrap.plan.plan import Plan
from bootbridge.bootstrap.render import node_files
from bootbridge.bootstrap.render.shell.script import RETRY_STOP_SECONDS
from tests.support.not_run import not_run
from tests.support.process_program import until
from tests.support.systemd import RunningSystemd, missing, running_systemd

# One systemd for all of them.
pytestmark = pytest.mark.xdist_group("systemd-bootstrap")

PLAN = Plan()
BOOTKUBE, RETRY, ABANDONED = (
    *("bootkube.service", "bootbridge-cleanup-retry.service"),
    "bootbridge-cleanup.service",
)
CALLS = "/run/calls"
# Runs until SIGTERM, if it is the unit that continues the removal.
SCRIPT = f"""\
echo "$* $(systemctl is-active {BOOTKUBE} {RETRY} | tr "\\n" " ")" >>{CALLS}
if [ "$1" = cleanup-retry ]; then
  trap 'echo stopped >>{CALLS}; exit 0' TERM
  while :; do sleep infinity & wait; done
fi
"""
# As the installer's of 4.3 to 5.2, which has no time limit either.
BOOTKUBE_UNIT = """\
[Service]
ExecStart=/bin/sh /run/bootkube.sh
Restart=on-failure
RestartSec=5s
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystemd]:
    if lack := missing():
        not_run(lack)
    tree = node_files.node_files(PLAN)
    with running_systemd(tmp_path_factory.mktemp("systemd")) as systemd:
        for path in (PLAN.paths.cleanup_unit, PLAN.paths.cleanup_retry_unit):
            text = tree[path].data.decode()
            assert f"ExecStart={PLAN.paths.hook_script} " in text
            text = text.replace(PLAN.paths.hook_script, "/bin/sh /run/hook.sh")
            systemd.write(path, text.replace("/opt/openshift", "/").encode())
        systemd.write("/run/hook.sh", SCRIPT.encode())
        systemd.write(f"/etc/systemd/system/{BOOTKUBE}", BOOTKUBE_UNIT.encode())
        systemd.systemctl("daemon-reload")
        yield systemd


@pytest.fixture
def systemd(machine: RunningSystemd) -> Iterator[RunningSystemd]:
    """With bootkube.service as it is during a bootstrap."""
    machine.write("/run/bootkube.sh", b"exec sleep infinity\n")
    machine.write(CALLS, b"")
    machine.systemctl("start", BOOTKUBE)
    yield machine
    machine.systemctl("stop", BOOTKUBE, RETRY, ABANDONED)
    machine.systemctl("disable", RETRY)


def calls(systemd: RunningSystemd) -> list[str]:
    return [line.strip() for line in systemd.run("cat", CALLS).splitlines()]


def test_the_removal_after_an_abandoned_bootstrap_stops_what_would_install_again(
    systemd: RunningSystemd,
) -> None:
    """Before it starts. bootkube.service is not restarted."""
    systemd.systemctl("start", RETRY)
    until(lambda: calls(systemd) == ["cleanup-retry active active"], "the unit runs")

    systemd.systemctl("start", ABANDONED)

    assert calls(systemd)[1:] == ["stopped", "cleanup --abandoned inactive inactive"]
    assert systemd.value(ABANDONED, "Result") == "success"
    assert systemd.value(BOOTKUBE, "ActiveState") == "inactive"


def test_the_unit_that_continues_the_removal_outlives_bootkube(systemd: RunningSystemd) -> None:
    """bootkube.sh enables and starts it, as its last action."""
    systemd.systemctl("stop", BOOTKUBE)
    hand_over = f"systemctl enable {RETRY}; systemctl start --no-block {RETRY}"
    systemd.write("/run/bootkube.sh", hand_over.encode())

    systemd.systemctl("start", BOOTKUBE)

    until(lambda: systemd.value(BOOTKUBE, "ActiveState") == "inactive", "bootkube.sh has ended")
    until(lambda: calls(systemd), "the unit runs")
    assert systemd.value(RETRY, "ActiveState") == "active"
    assert systemd.value(RETRY, "UnitFileState") == "enabled"


def test_after_a_reboot_the_unit_runs_and_does_not_hold_the_boot(systemd: RunningSystemd) -> None:
    """The target is reached while it runs."""
    systemd.systemctl("enable", RETRY)

    systemd.systemctl("start", "multi-user.target")

    until(lambda: calls(systemd), "the unit runs")
    assert systemd.value(RETRY, "ActiveState") == "active"
    assert RETRY in systemd.value("multi-user.target", "Wants").split()


def test_at_shutdown_the_unit_has_network_and_time_for_a_last_attempt(systemd: RunningSystemd) -> None:
    """It ends before the network does: units are stopped in the reverse order of their start."""
    assert "network-online.target" in systemd.value(RETRY, "After").split()
    assert "network-online.target" in systemd.value(RETRY, "Wants").split()
    minutes, seconds = divmod(RETRY_STOP_SECONDS, 60)
    assert systemd.value(RETRY, "TimeoutStopUSec") == f"{minutes}min {seconds}s"
    systemd.systemctl("start", RETRY)
    until(lambda: calls(systemd), "the unit runs")

    systemd.systemctl("stop", RETRY)

    assert calls(systemd)[1:] == ["stopped"]
    assert systemd.value(RETRY, "Result") == "success"
