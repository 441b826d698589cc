"""Runs firewall actions and scripts against fake clouds: create and remove, each twice."""

from __future__ import annotations

import json
import os
import shutil
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
from tests.bootstrap.firewall import fake_clouds
from tests.support.not_run import not_run

PLAN = Plan(infra_id=fake_clouds.CLUSTER)
NAME = f"{fake_clouds.CLUSTER}-bootstrap-konnectivity"
DUAL_STACK = Networking(machine=(ip_network("10.0.0.0/16"), ip_network("fd00::/48")))


class Cloud:
    """Holds the state of the fake clouds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "cloud.json"
        self.state = fake_clouds.empty_cloud()

    @property
    def state(self) -> dict[str, Any]:
        return json.loads(self.path.read_bytes())  # type: ignore[no-any-return]

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self.path.write_text(json.dumps(state))

    def run_script(self, plan: Plan, direction: str) -> str:
        path = self.directory / f"{direction}.sh"
        text = firewall.render_files(plan)[f"firewall/{direction}.sh"].data
        if b"jq" in text and shutil.which("jq") is None:
            not_run("jq not found, which the script calls (on Debian: apt-get install jq)")
        path.write_bytes(text)
        done = subprocess.run(["sh", path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Puts fakes of all CLIs first on the PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in fake_clouds.PROGRAMS:
        program = programs / name
        command = f"exec {sys.executable} -I -S {fake_clouds.__file__} {name}"
        program.write_text(f'#!/bin/sh\n{command} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CLOUD", str(tmp_path / "cloud.json"))
    monkeypatch.chdir(tmp_path)  # for the record that create writes
    return Cloud(tmp_path)


def plan_for(platform: Platform) -> Plan:
    return replace(
        PLAN, platform=platform, networks=Networking() if platform is Platform.POWERVS else DUAL_STACK
    )


def outcomes(results: list[firewall.ActionResult]) -> set[str]:
    assert not [result for result in results if result.failed]
    return {str(result.outcome) for result in results}


def azure_rules(state: dict[str, Any], group: str = f"{fake_clouds.CLUSTER}-nsg") -> dict[str, Any]:
    return state["azure"]["groups"][group]["rules"]  # type: ignore[no-any-return]


# Whether the port is open.
OPENED: dict[Platform, Callable[[dict[str, Any]], bool]] = {
    Platform.AWS: lambda s: (
        [8091, 8091, "sg-0a"] in s["aws"]["groups"]["sg-102"]["rules"]
        and [8091, 8091, "sg-0b"] in s["aws"]["groups"]["sg-102"]["rules"]
        and s["aws"]["interface"] == ["sg-0a", "sg-102"]
    ),
    Platform.AZURE: lambda s: (
        azure_rules(s)[f"{NAME}-v4"]["from"] == ["10.0.0.0/16"]
        and azure_rules(s)[f"{NAME}-v6"]["from"] == ["fd00::/48"]
    ),
    Platform.GCP: lambda s: (
        s["gcp"]["rules"]["p1"][NAME]["--target-tags"] == [NAME] and NAME in s["gcp"]["tags"]
    ),
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
def test_create_and_remove_are_idempotent(cloud: Cloud, platform: Platform) -> None:
    """Create, create again by script, remove by script, remove again: the cloud is as before."""
    plan, before = plan_for(platform), cloud.state
    expected = {"done", "unchanged"} if platform is Platform.AZURE else {"done"}
    assert outcomes(firewall.run(firewall.create(plan))) == expected
    opened = cloud.state
    assert OPENED[platform](opened)
    cloud.run_script(plan, "create")
    assert cloud.state == opened
    cloud.run_script(plan, "remove")
    assert cloud.state == before
    again = firewall.run(firewall.remove(plan), keep_going=True)
    assert outcomes(again) <= {"unchanged", "done"}
    assert cloud.state == before


@pytest.mark.slow
@pytest.mark.parametrize("platform", MANAGED)
def test_apply_removes_what_the_script_created(cloud: Cloud, platform: Platform) -> None:
    """Script and --apply have the same effect and can be mixed."""
    plan, before = plan_for(platform), cloud.state
    cloud.run_script(plan, "create")
    assert OPENED[platform](cloud.state)
    opened = cloud.state
    outcomes(firewall.run(firewall.create(plan)))
    assert cloud.state == opened
    outcomes(firewall.run(firewall.remove(plan), keep_going=True))
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
def test_removal_without_the_bootstrap_node(
    cloud: Cloud, platform: Platform, machine: tuple[str, str]
) -> None:
    """The installer may have deleted the machine already; everything else is still removed."""
    plan = plan_for(platform)
    outcomes(firewall.run(firewall.create(plan)))
    state = cloud.state
    state[machine[0]][machine[1]] = None
    cloud.state = state
    outcomes(firewall.run(firewall.remove(plan), keep_going=True))
    expected = fake_clouds.empty_cloud()
    expected[machine[0]][machine[1]] = None
    assert cloud.state == expected


def test_create_fails_without_the_bootstrap_node(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the machine, and nothing is created."""
    state = cloud.state
    state["aws"]["interface"] = None
    cloud.state = state
    assert main(["firewall", "create", "--platform=aws", f"--infra-id={PLAN.infra_id}", "--apply"]) == 1
    error = capsys.readouterr().err
    assert f"the vpc of the running instance {fake_clouds.BOOTSTRAP} was not found" in error
    assert cloud.state == state


def test_removal_continues_after_a_failure(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """The other rules are removed, and the exit code is 2."""
    words = ["--platform=azure", f"--infra-id={PLAN.infra_id}", "--machine-network=10.0.0.0/16"]
    words += ["--machine-network=fd00::/48", "--apply", "--json"]
    assert main(["firewall", "create", *words]) == 0
    capsys.readouterr()
    program = cloud.directory / "bin" / "az"
    real = program.read_text()
    refuse = 'case "$*" in *delete*v4*) echo "(AuthorizationFailed) no" >&2; exit 1;; esac\n'
    program.write_text(real.replace("exec ", f"{refuse}exec "))
    assert main(["firewall", "remove", *words]) == 2
    results = json.loads(capsys.readouterr().out)
    assert [(r["rule"], r["outcome"]) for r in results] == [(f"{NAME}-v4", "failed"), (f"{NAME}-v6", "done")]
    assert "AuthorizationFailed" in results[0]["detail"]
    assert set(azure_rules(cloud.state)) == {"apiserver_in", f"{NAME}-v4"}


def test_a_cli_that_hangs_times_out(cloud: Cloud) -> None:
    """The failure names the program."""
    (cloud.directory / "bin" / "gcloud").write_text("#!/bin/sh\nexec sleep 60\n")
    (result,) = firewall.run(firewall.create(plan_for(Platform.GCP)), timeout=0.2)
    assert (result.failed, result.detail) == (True, "gcloud timed out after 0.2s")


@pytest.mark.parametrize(
    "answer", ["no json", json.dumps([{"name": fake_clouds.BOOTSTRAP, "zone": "x; reboot"}])]
)
def test_invalid_cli_output_never_reaches_a_command(cloud: Cloud, answer: str) -> None:
    """--apply and the script both stop before the command that would use it."""
    ran = cloud.directory / "ran"
    program = cloud.directory / "bin" / "gcloud"
    program.write_text(f"#!/bin/sh\ncase $3 in list) echo '{answer}';; *) echo \"$@\" >> {ran};; esac\n")
    plan = plan_for(Platform.GCP)
    (result,) = firewall.run(firewall.create(plan))
    assert result.failed
    with pytest.raises(AssertionError, match=r"failed: invalid .* gcloud"):
        cloud.run_script(plan, "create")
    assert not ran.exists()


def test_an_ambiguous_group_name_fails(cloud: Cloud) -> None:
    """OpenStack allows two groups of one name, and either could be the wrong one."""
    plan, state = plan_for(Platform.OPENSTACK), cloud.state
    state["openstack"]["groups"] |= {"a1": {"name": NAME, "rules": []}, "a2": {"name": NAME, "rules": []}}
    cloud.state = state
    results = firewall.run(firewall.remove(plan), keep_going=True)
    assert {result.detail for result in results} == {f"the security group {NAME} exists 2 times: a1, a2"}
    with pytest.raises(AssertionError, match="exists more than once"):
        cloud.run_script(plan, "remove")
    assert cloud.state == state


def test_a_missing_cli_fails_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the program and the alternative."""
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--platform=ibmcloud", f"--infra-id={PLAN.infra_id}", "--apply"]
    assert main(["firewall", "create", *words]) == 1
    error = capsys.readouterr().err
    assert "command not found: 'ibmcloud'" in error
    assert "--output DIR" in error
