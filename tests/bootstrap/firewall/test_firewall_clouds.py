"""The firewall against small clouds that speak as the real CLIs do: opened and closed, each twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.firewall.providers import MANAGED
from bootbridge.bootstrap.plan.plan import Networking, Plan, Platform
from bootbridge.cli.main import main
from tests.bootstrap.firewall import firewall_clouds

PLAN = Plan(infra_id=firewall_clouds.CLUSTER)
NAME = f"{firewall_clouds.CLUSTER}-bootstrap-konnectivity"
DUAL_STACK = Networking(machine=(ip_network("10.0.0.0/16"), ip_network("fd00::/48")))


class Cloud:
    """The clouds' state, and the ways to change it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "cloud.json"
        self.state = firewall_clouds.empty_cloud()

    @property
    def state(self) -> dict[str, Any]:
        return json.loads(self.path.read_bytes())  # type: ignore[no-any-return]

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(state))

    def run_script(self, plan: Plan, direction: str) -> str:
        path = self.directory / f"{direction}.sh"
        path.write_bytes(firewall.render_files(plan)[f"firewall/{direction}.sh"].data)
        done = subprocess.run(["sh", path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Stand-ins for all CLIs first on the PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in firewall_clouds.PROGRAMS:
        program = programs / name
        command = f"exec {sys.executable} -I -S {firewall_clouds.__file__} {name}"
        program.write_text(f'#!/bin/sh\n{command} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CLOUD", str(tmp_path / "cloud.json"))
    return Cloud(tmp_path)


def plan_for(platform: Platform) -> Plan:
    return replace(
        PLAN, platform=platform, networks=Networking() if platform is Platform.POWERVS else DUAL_STACK
    )


def outcomes(results: list[firewall.ActionResult]) -> set[str]:
    assert not [result for result in results if result.failed]
    return {str(result.outcome) for result in results}


# What is there once the port is open.
OPENED: dict[Platform, Callable[[dict[str, Any]], bool]] = {
    Platform.AWS: lambda s: (
        [8091, 8091, "sg-0a"] in s["aws"]["groups"]["sg-102"]["rules"]
        and [8091, 8091, "sg-0b"] in s["aws"]["groups"]["sg-102"]["rules"]
        and s["aws"]["interface"] == ["sg-0a", "sg-102"]
    ),
    Platform.AZURE: lambda s: (
        s["azure"]["rules"][f"{NAME}-v4"]["from"] == ["10.0.0.0/16"]
        and s["azure"]["rules"][f"{NAME}-v6"]["from"] == ["fd00::/48"]
    ),
    Platform.GCP: lambda s: s["gcp"]["rules"][NAME]["--target-tags"] == [NAME] and NAME in s["gcp"]["tags"],
    Platform.IBMCLOUD: lambda s: (
        s["ibm"]["groups"]["r010-102"]["targets"] == ["nic-1"]
        and len(s["ibm"]["groups"]["r010-102"]["rules"]) == 1
    ),
    Platform.POWERVS: lambda s: (
        ["inbound", "tcp", 8091, {"cidr_block": "10.0.0.0/16"}]
        in s["ibm"]["groups"]["r010-b"]["rules"].values()
    ),
    Platform.OPENSTACK: lambda s: (
        [rule[:2] for rule in s["openstack"]["groups"]["9f101"]["rules"]]
        == [["10.0.0.0/16", "IPv4"], ["fd00::/48", "IPv6"]]
        and NAME in s["openstack"]["server"]
    ),
}


@pytest.mark.parametrize("platform", MANAGED)
def test_what_was_opened_is_closed_and_doing_it_twice_changes_nothing(
    cloud: Cloud, platform: Platform
) -> None:
    """Open, open again by script, close by script, close again: the cloud is as it was, ours is gone."""
    plan, before = plan_for(platform), cloud.state
    assert outcomes(firewall.run(firewall.create(plan))) == {"done"}
    opened = cloud.state
    assert OPENED[platform](opened)
    cloud.run_script(plan, "create")
    assert cloud.state == opened
    cloud.run_script(plan, "remove")
    assert cloud.state == before
    again = firewall.run(firewall.removal(plan), keep_going=True)
    assert outcomes(again) <= {"already", "done"}
    assert cloud.state == before


@pytest.mark.slow
@pytest.mark.parametrize("platform", MANAGED)
def test_the_script_opens_what_apply_opens_and_apply_closes_it(cloud: Cloud, platform: Platform) -> None:
    """Both ways are one: what the script made, --apply finds and takes away."""
    plan, before = plan_for(platform), cloud.state
    cloud.run_script(plan, "create")
    assert OPENED[platform](cloud.state)
    opened = cloud.state
    outcomes(firewall.run(firewall.create(plan)))
    assert cloud.state == opened
    outcomes(firewall.run(firewall.removal(plan), keep_going=True))
    assert cloud.state == before
    cloud.run_script(plan, "remove")
    assert cloud.state == before


@pytest.mark.parametrize(
    ("platform", "machine"),
    [
        (Platform.AWS, ("aws", "interface")),
        (Platform.GCP, ("gcp", "tags")),
        (Platform.OPENSTACK, ("openstack", "server")),
    ],
)
def test_the_rule_goes_also_when_the_bootstrap_node_is_gone(
    cloud: Cloud, platform: Platform, machine: tuple[str, str]
) -> None:
    """The installer may have deleted the machine before; the rest is still removed."""
    plan = plan_for(platform)
    outcomes(firewall.run(firewall.create(plan)))
    state = cloud.state
    state[machine[0]][machine[1]] = None
    cloud.state = state
    outcomes(firewall.run(firewall.removal(plan), keep_going=True))
    expected = firewall_clouds.empty_cloud()
    expected[machine[0]][machine[1]] = None
    assert cloud.state == expected


def test_opening_fails_clearly_when_the_bootstrap_node_is_not_there(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is made for a machine that does not exist; the error names it."""
    state = cloud.state
    state["aws"]["interface"] = None
    cloud.state = state
    assert main(["firewall", "create", "--platform=aws", f"--infra-id={PLAN.infra_id}", "--apply"]) == 1
    assert (
        f"the VPC of the running instance {firewall_clouds.BOOTSTRAP} is not there" in capsys.readouterr().err
    )
    assert cloud.state == state


def test_removal_goes_on_after_a_failure_and_says_so(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rule that cannot be taken away does not keep the rest; the exit code tells."""
    words = ["--platform=azure", f"--infra-id={PLAN.infra_id}", "--machine-network=10.0.0.0/16"]
    words += ["--machine-network=fd00::/48", "--apply", "--json"]
    assert main(["firewall", "create", *words]) == 0
    capsys.readouterr()
    program = cloud.directory / "bin" / "az"
    real = program.read_text()
    refuse = 'case "$*" in *v4) echo "(AuthorizationFailed) no" >&2; exit 1;; esac\n'
    program.write_text(real.replace("exec ", f"{refuse}exec "))
    assert main(["firewall", "remove", *words]) == 2
    results = json.loads(capsys.readouterr().out)
    assert [(r["rule"], r["outcome"]) for r in results] == [(f"{NAME}-v4", "failed"), (f"{NAME}-v6", "done")]
    assert "AuthorizationFailed" in results[0]["detail"]
    assert set(cloud.state["azure"]["rules"]) == {"apiserver_in", f"{NAME}-v4"}


def test_a_cli_that_hangs_is_given_up(cloud: Cloud) -> None:
    """No answer within the time is a failure that names the program."""
    (cloud.directory / "bin" / "gcloud").write_text("#!/bin/sh\nexec sleep 60\n")
    (result,) = firewall.run(firewall.create(plan_for(Platform.GCP)), timeout=0.2)
    assert (result.failed, result.detail) == (True, "gcloud gave no answer within 0.2 s")


@pytest.mark.parametrize(
    "answer", ["no json", json.dumps([{"name": firewall_clouds.BOOTSTRAP, "zone": "x; reboot"}])]
)
def test_an_answer_that_makes_no_sense_is_never_put_into_a_command(cloud: Cloud, answer: str) -> None:
    """Neither by us nor by the script: both stop before the command that would use it."""
    ran = cloud.directory / "ran"
    program = cloud.directory / "bin" / "gcloud"
    program.write_text(f"#!/bin/sh\ncase $3 in list) echo '{answer}';; *) echo \"$@\" >> {ran};; esac\n")
    plan = plan_for(Platform.GCP)
    (result,) = firewall.run(firewall.create(plan))
    assert result.failed
    with pytest.raises(AssertionError, match="failed: gcloud gave"):
        cloud.run_script(plan, "create")
    assert not ran.exists()


def test_two_groups_of_the_same_name_are_not_guessed_between(cloud: Cloud) -> None:
    """OpenStack allows it; taking any of them could be the wrong one."""
    plan, state = plan_for(Platform.OPENSTACK), cloud.state
    state["openstack"]["groups"] |= {"a1": {"name": NAME, "rules": []}, "a2": {"name": NAME, "rules": []}}
    cloud.state = state
    results = firewall.run(firewall.removal(plan), keep_going=True)
    assert {result.detail for result in results} == {f"the security group {NAME} is there 2 times: a1, a2"}
    with pytest.raises(AssertionError, match="is there more than once"):
        cloud.run_script(plan, "remove")
    assert cloud.state == state


def test_a_missing_cli_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says which program is wanted and what else can be done."""
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--platform=ibmcloud", f"--infra-id={PLAN.infra_id}", "--apply"]
    assert main(["firewall", "create", *words]) == 1
    error = capsys.readouterr().err
    assert "'ibmcloud' is not on the PATH" in error
    assert "--output DIR" in error
