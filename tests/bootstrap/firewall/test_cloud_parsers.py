"""Parses every command that we generate with the real CLIs of the clouds: no flag or verb is invented.

`make cloud-cli-test` installs AWS's, Azure's and OpenStack's CLI from PyPI. gcloud is in no registry that CI
uses; its test runs where gcloud is installed. IBM Cloud's CLI and its VPC plugin are not published in one
either, so their commands are checked against their documentation only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.firewall.runner import fill_placeholders
from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.plan import Networking, Plan, Platform
from tests.bootstrap.firewall import parse_commands

pytestmark = pytest.mark.clouds

PYTHON = Path(__file__).parents[3] / "build/clouds/bin/python"
PROGRAMS = {"aws": Platform.AWS, "az": Platform.AZURE, "openstack": Platform.OPENSTACK}
SUBSCRIPTION = "/subscriptions/0f1e/resourceGroups/g1/providers/Microsoft.Network"
# What the clouds' lookups could find.
FOUND = {
    "active_cloud": ["AzureCloud"],
    "address": ["10.0.0.9"],
    "group": ["sg-1"],
    "group_id": [f"{SUBSCRIPTION}/networkSecurityGroups/n1"],
    "group_resource_group": ["g1"],
    "interface": ["eni-1"],
    "network": ["n1"],
    "network_project": ["p2"],
    "others": ["sg-2", "sg-3"],
    "project": ["p1"],
    "region": ["eu-west-1"],
    "resource_group": ["g1"],
    "rules": [f"{SUBSCRIPTION}/networkSecurityGroups/n{n}/securityRules/r" for n in (1, 2)],
    "server": ["5e"],
    "source": ["sg-4"],
    "subnet": [f"{SUBSCRIPTION}/virtualNetworks/v1/subnets/s1"],
    "vpc": ["vpc-1"],
    "zone": ["eu-west-1a"],
}
NETWORKS = Networking(machine=(ip_network("10.0.0.0/16"), ip_network("10.1.0.0/16"), ip_network("fd00::/48")))
BARE = Plan(infra_id="c1-x7k2p")
FULL = Plan(
    infra_id="c1-x7k2p",
    networks=NETWORKS,
    node_ips=(ip_address("10.0.0.5"),),
    cloud=CloudSettings(
        region="eu-west-1",
        project="p1",
        network_project="p2",
        resource_group="g1",
        cloud_name="mycloud",
        release="4.18",
    ),
)


def commands(platform: Platform) -> list[list[str]]:
    """Returns every command and every lookup of a cloud, with and without settings of install-config."""
    found: dict[tuple[str, ...], None] = {}
    for plan in (replace(BARE, platform=platform), replace(FULL, platform=platform)):
        for action in (*firewall.create(plan), *firewall.remove(plan)):
            for argv in (*(lookup.argv for lookup in action.lookups), action.argv):
                found[tuple(fill_placeholders(argv, FOUND))] = None
    return [list(argv) for argv in found]


def parse(program: str, lines: list[list[str]]) -> list[str]:
    if not PYTHON.exists():
        text = "the CLIs are not installed (run make cloud-cli-test)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(text)
    words = [[*line[1:]] for line in lines]
    done = subprocess.run(
        [PYTHON, "-I", parse_commands.__file__, program],
        input=json.dumps(words),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_real_cli_parses_every_command(program: str) -> None:
    """And it rejects one with a flag that does not exist, so the check can fail."""
    lines = commands(PROGRAMS[program])
    assert len(lines) > 5
    *answers, rejected = parse(program, [*lines, [*lines[0], "--no-such-flag"]])
    assert {" ".join(line): answer for line, answer in zip(lines, answers, strict=True) if answer} == {}
    assert "--no-such-flag" in rejected


def test_aws_validates_the_bodies_of_requests() -> None:
    """A misspelled member or a wrong type would be noticed."""
    line = next(line for line in commands(Platform.AWS) if "create-security-group" in line)
    body = json.loads(line[line.index("--cli-input-json") + 1])
    wrong = [body | {"Descriptoin": "x"}, body | {"VpcId": 7}]
    lines = [
        [word if word != json.dumps(body) else json.dumps(other) for word in line] for other in (body, *wrong)
    ]
    right, misspelled, mistyped = parse("aws", lines)
    assert right == ""
    assert "Descriptoin" in misspelled
    assert "VpcId" in mistyped


@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed, and in no registry of CI")
def test_gcloud_parses_every_command(tmp_path: Path) -> None:
    """Without an account it parses the command, then says that no account is active; nothing is sent."""
    environment = os.environ | {"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    lines = commands(Platform.GCP)
    for line in lines:
        done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120)
        assert (done.returncode, "active account" in done.stderr) == (1, True), f"{line}: {done.stderr}"
    wrong = [*lines[0], "--no-such-flag"]
    done = subprocess.run(wrong, capture_output=True, text=True, env=environment, timeout=120)
    assert (done.returncode, "--no-such-flag" in done.stderr) == (2, True), done.stderr
