"""Settings of install-config, names per release and faults of the clouds, against fake CLIs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.plan import Plan, Platform
from bootbridge.cli.main import main
from tests.bootstrap.firewall import fake_clouds
from tests.bootstrap.firewall.test_runner import NAME, Cloud, azure_rules, cloud, outcomes

__all__ = ["cloud"]

CLUSTER = fake_clouds.CLUSTER
RECORD = f"{CLUSTER}-firewall.json"


def write_config(platform: str, *lines: str) -> str:
    settings = "".join(f"    {line}\n" for line in lines)
    Path("install-config.yaml").write_text(f"apiVersion: v1\nplatform:\n  {platform}:\n{settings}")
    return "--install-config=install-config.yaml"


def run(direction: str, *words: str) -> int:
    return main(["firewall", direction, f"--infra-id={CLUSTER}", *words])


def plan_on(platform: Platform, **settings: str) -> Plan:
    return Plan(platform=platform, infra_id=CLUSTER, cloud=CloudSettings(**settings))


# --- AWS


def old_groups(cloud: Cloud) -> None:
    """Replaces the cluster's groups by those of Terraform: only their tag has the name."""
    state = cloud.state
    for key, role in (("sg-0a", "master-sg"), ("sg-0b", "worker-sg")):
        state["aws"]["groups"][key] |= {"name": f"terraform-{key}", "tag": f"{CLUSTER}-{role}"}
    cloud.state = state


@pytest.mark.parametrize("release", ["", "4.14"])
@pytest.mark.parametrize("script", [False, True])
def test_aws_finds_the_groups_of_installers_before_4_16(cloud: Cloud, release: str, script: bool) -> None:
    """By their tag: the groups' own names were generated."""
    old_groups(cloud)
    plan, before = plan_on(Platform.AWS, release=release), cloud.state
    if script:
        assert "found the security group" in cloud.run_script(plan, "create")
    else:
        assert outcomes(firewall.run(firewall.create(plan))) == {"done"}
    rules = cloud.state["aws"]["groups"]["sg-102"]["rules"]
    assert rules == [[8091, 8091, "sg-0a"], [8091, 8091, "sg-0b"]]
    outcomes(firewall.run(firewall.remove(plan), keep_going=True))
    assert cloud.state == before


def test_aws_with_the_wrong_release_names_the_missing_group(cloud: Cloud) -> None:
    """Nothing is attached to the instance."""
    old_groups(cloud)
    results = firewall.run(firewall.create(plan_on(Platform.AWS, release="4.18")))
    assert results[-1].detail == f"the security group {CLUSTER}-controlplane was not found"
    assert cloud.state["aws"]["interface"] == ["sg-0a"]


def test_aws_works_in_the_region_of_install_config(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """The instance is not found in another one, and the error names the region."""
    assert run("create", write_config("aws", "region: us-east-2"), "--apply") == 1
    error = capsys.readouterr().err
    assert f"instance {fake_clouds.BOOTSTRAP} was not found (in region us-east-2)" in error
    before = cloud.state
    assert run("create", write_config("aws", "region: eu-west-1"), "--apply") == 0
    assert cloud.state != before
    assert run("remove", "--apply") == 0
    assert cloud.state == before


# --- Azure


def existing_vnet(cloud: Cloud, group: str | None = "their-nsg", interface: str | None = None) -> None:
    """The subnet has a group of the operator, or none; the installer's own group filters nothing."""
    state = cloud.state
    for name in filter(None, (group, interface)):
        state["azure"]["groups"][name] = {"resource_group": "their-rg", "rules": {}}
    state["azure"] |= {"subnet_group": group, "interface_group": interface}
    cloud.state = state


@pytest.mark.parametrize("script", [False, True])
def test_azure_uses_the_group_of_an_existing_subnet(cloud: Cloud, script: bool) -> None:
    """The installer's `<infraID>-nsg` exists, but no subnet has it."""
    existing_vnet(cloud)
    plan, before = plan_on(Platform.AZURE), cloud.state
    if script:
        cloud.run_script(plan, "create")
    else:
        outcomes(firewall.run(firewall.create(plan)))
    assert set(azure_rules(cloud.state, "their-nsg")) == {f"{NAME}-v4"}
    assert set(azure_rules(cloud.state)) == {"apiserver_in"}
    if script:
        cloud.run_script(plan, "remove")
    else:
        outcomes(firewall.run(firewall.remove(plan), keep_going=True))
    assert cloud.state == before


def test_azure_uses_the_group_of_the_interface_as_well(cloud: Cloud) -> None:
    """Both filter. The removal deletes the rule from both."""
    existing_vnet(cloud, interface="nic-nsg")
    plan, before = plan_on(Platform.AZURE), cloud.state
    assert outcomes(firewall.run(firewall.create(plan))) == {"done"}
    assert [set(azure_rules(cloud.state, name)) for name in ("their-nsg", "nic-nsg")] == [{f"{NAME}-v4"}] * 2
    (removed,) = firewall.run(firewall.remove(plan), keep_going=True)
    assert len(removed.found["rules"]) == 2
    assert cloud.state == before


def test_azure_removes_the_rule_from_a_group_that_the_subnet_had(cloud: Cloud) -> None:
    """The operator may have replaced the subnet's group meanwhile."""
    existing_vnet(cloud)
    plan, before = plan_on(Platform.AZURE), cloud.state
    outcomes(firewall.run(firewall.create(plan)))
    state = cloud.state
    state["azure"]["subnet_group"] = "another-nsg"
    cloud.state = state
    outcomes(firewall.run(firewall.remove(plan), keep_going=True))
    assert cloud.state["azure"]["groups"] == before["azure"]["groups"]


def test_azure_has_nothing_to_open_without_a_group(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Azure filters nothing in such a subnet: that is no failure, and it is said."""
    existing_vnet(cloud, group=None)
    before = cloud.state
    assert run("create", "--platform=azure", "--apply") == 0
    assert "nothing to open: Azure filters nothing in a subnet without a group" in capsys.readouterr().out
    assert cloud.state == before


def test_azure_refuses_another_environment(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Logged in to the public cloud, but the cluster is in the government's."""
    config, before = write_config("azure", "cloudName: AzureUSGovernmentCloud"), cloud.state
    assert run("create", config, "--apply") == 1
    assert "run: az cloud set --name AzureUSGovernment" in capsys.readouterr().err
    assert cloud.state == before
    assert run("create", write_config("azure", "cloudName: AzurePublicCloud"), "--apply") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  found ")]
    assert [line.removeprefix("  found ").split(": ")[0] for line in lines] == [
        "the environment AzureCloud as the CLI's active one",
        f"the resource group of {fake_clouds.BOOTSTRAP}-nic",
        f"the subnet of {fake_clouds.BOOTSTRAP}-nic",
        "the network security group of the subnet",
        f"an IPv4 address on {fake_clouds.BOOTSTRAP}-nic",
    ]


# --- GCP


def shared_vpc(cloud: Cloud) -> None:
    state = cloud.state
    state["gcp"]["network_project"] = "p2"
    cloud.state = state


def test_gcp_creates_the_rule_in_the_project_of_a_shared_vpc(cloud: Cloud) -> None:
    """As install-config says."""
    shared_vpc(cloud)
    before = cloud.state
    config = write_config("gcp", "projectID: p1", "networkProjectID: p2", "region: us-c1", "network: n")
    assert run("create", config, "--apply") == 0
    assert list(cloud.state["gcp"]["rules"]["p2"]) == [NAME]
    assert run("remove", "--apply") == 0
    assert cloud.state == before


def test_gcp_removes_from_the_project_in_the_record(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Without install-config, after the instance is gone, and with another default project."""
    shared_vpc(cloud)
    assert run("create", "--platform=gcp", "--apply") == 0
    assert f"found the network project of the instance {CLUSTER}-bootstrap: p2" in capsys.readouterr().out
    settings = json.loads(Path(RECORD).read_bytes())["plan"]["cloud"]
    assert (settings["project"], settings["networkProject"]) == ("p1", "p2")
    state = cloud.state
    state["gcp"] |= {"tags": None, "default_project": "p3"}
    state["gcp"]["rules"]["p3"] = {}
    cloud.state = state
    assert main(["firewall", "remove", f"--record={RECORD}", "--apply"]) == 0
    assert cloud.state["gcp"]["rules"]["p2"] == {}
    assert not Path(RECORD).exists()


@pytest.mark.parametrize("setting", ["firewallRulesManagement: Unmanaged", "createFirewallRules: Disabled"])
def test_gcp_rules_that_the_operator_manages_are_refused(
    cloud: Cloud, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to open, where, and who can do it."""
    before = cloud.state
    config = write_config("gcp", "projectID: p1", "networkProjectID: p2", "network: n1", setting)
    assert run("create", config, "--apply") == 1
    assert (
        f"not supported on platform gcp: install-config has platform.gcp.{setting}" in capsys.readouterr().err
    )
    assert run("create", config) == 0
    printed = capsys.readouterr().out
    for text in ("8091", "VPC network n1 of project p2, by its network administrators", f"{CLUSTER}-worker"):
        assert text in printed
    assert cloud.state == before


# --- IBM Cloud, PowerVS, OpenStack


@pytest.mark.parametrize(
    ("platform", "line"), [("ibmcloud", "region: us-south"), ("powervs", "vpcRegion: us-south")]
)
def test_ibm_refuses_another_region(
    cloud: Cloud, platform: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No flag of the CLI's commands selects it."""
    before = cloud.state
    assert run("create", write_config(platform, line), "--apply") == 1
    assert "run: ibmcloud target -r us-south" in capsys.readouterr().err
    assert cloud.state == before


def test_ibm_creates_the_group_in_the_cluster_s_resource_group() -> None:
    """Where the installer's `destroy cluster` finds it."""
    (create, *_) = firewall.create(plan_on(Platform.IBMCLOUD, resource_group="team-a"))
    assert create.argv[5:7] == ("--resource-group-name", "team-a")


def test_powervs_uses_the_group_of_installers_before_4_17(cloud: Cloud) -> None:
    """The cloud is asked for both names."""
    state = cloud.state
    state["ibm"]["groups"]["r010-b"]["name"] = f"{CLUSTER}-ocp-sec-group"
    cloud.state = state
    plan = plan_on(Platform.POWERVS)
    assert outcomes(firewall.run(firewall.create(plan))) == {"done"}
    assert len(cloud.state["ibm"]["groups"]["r010-b"]["rules"]) == 2
    outcomes(firewall.run(firewall.remove(plan), keep_going=True))
    assert cloud.state == state


def test_openstack_uses_the_cloud_of_install_config(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """It is an entry of clouds.yaml."""
    before = cloud.state
    assert run("create", write_config("openstack", "cloud: other"), "--apply") == 1
    assert "Cloud other was not found" in capsys.readouterr().err
    assert run("create", write_config("openstack", "cloud: mycloud"), "--apply") == 0
    assert run("remove", "--apply") == 0
    assert cloud.state == before


# --- faults of the clouds

DENIED = {
    # botocore's ClientError, of awscli 1.46
    Platform.AWS: "An error occurred (UnauthorizedOperation) when calling the CreateSecurityGroup operation",
    # azure-cli 2.91
    Platform.AZURE: "(AuthorizationFailed) The client 'x' does not have authorization to perform action",
    # gcloud 528
    Platform.GCP: "ERROR: (gcloud.compute) Could not fetch resource: Required permission 'compute'",
    # the VPC API's error codes
    Platform.IBMCLOUD: "Error code: not_authorized",
    # openstacksdk 4, of python-openstackclient 10.5
    Platform.OPENSTACK: "ForbiddenException: 403: Client Error, rule:create_security_group is disallowed",
    Platform.POWERVS: "Error code: not_authorized",
}
CHANGES = {
    Platform.AWS: "create-security-group",
    Platform.AZURE: "rule create",
    Platform.GCP: "firewall-rules create",
    Platform.IBMCLOUD: "security-group-create",
    Platform.OPENSTACK: "group create",
    Platform.POWERVS: "security-group-rule-add",
}
QUESTIONS = {
    Platform.AWS: "describe-instances",
    Platform.AZURE: "nic list",
    Platform.GCP: "instances list",
    Platform.IBMCLOUD: "is security-groups",
    Platform.OPENSTACK: "group list",
    Platform.POWERVS: "is security-groups",
}

REMOVAL_QUESTIONS = QUESTIONS | {
    Platform.AWS: "describe-security-groups",
    Platform.AZURE: "nsg list",
    Platform.GCP: "firewall-rules delete",
    Platform.OPENSTACK: "group list",
}


@pytest.mark.parametrize("command", [CHANGES, QUESTIONS], ids=["change", "question"])
@pytest.mark.parametrize("platform", DENIED)
def test_a_denied_permission_is_a_failure(
    cloud: Cloud, platform: Platform, command: dict[Platform, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the cloud's words; a denied question is never taken for `not found`."""
    state = cloud.state
    cloud.state = state | {"faults": {command[platform]: DENIED[platform]}}
    assert run("create", f"--platform={platform}", "--apply") == 1
    assert DENIED[platform] in capsys.readouterr().err


@pytest.mark.parametrize("platform", DENIED)
def test_a_denied_removal_is_a_finding(cloud: Cloud, platform: Platform) -> None:
    """Not finding out whether the rule exists is not the same as its absence; the record stays."""
    assert run("create", f"--platform={platform}", "--apply") == 0
    opened = cloud.state
    cloud.state = opened | {"faults": {REMOVAL_QUESTIONS[platform]: DENIED[platform]}}
    assert run("remove", "--apply") == 2
    assert (
        replaced(cloud) == opened if platform is not Platform.GCP else NAME not in cloud.state["gcp"]["tags"]
    )
    assert Path(RECORD).exists()


@pytest.mark.parametrize("platform", DENIED)
def test_removal_when_everything_is_gone_succeeds(
    cloud: Cloud, platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was ever created, or the cluster was destroyed."""
    before = cloud.state
    assert run("remove", f"--platform={platform}", "--apply") == 0
    assert "failed" not in capsys.readouterr().out
    assert cloud.state == before


@pytest.mark.parametrize(
    ("platform", "group", "name"),
    [
        (Platform.AWS, ("aws", "sg-0b"), f"{CLUSTER}-node or {CLUSTER}-worker-sg"),
        (Platform.IBMCLOUD, ("ibm", "r010-a"), f"{CLUSTER}-sg-cluster-wide"),
        (Platform.POWERVS, ("ibm", "r010-b"), f"{CLUSTER}-sg-control-plane or {CLUSTER}-ocp-sec-group"),
    ],
)
def test_a_missing_group_of_the_installer_is_named(
    cloud: Cloud, platform: Platform, group: tuple[str, str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The removal afterwards leaves nothing of ours behind."""
    state = cloud.state
    del state[group[0]]["groups"][group[1]]
    cloud.state = state
    assert run("create", f"--platform={platform}", "--apply") == 1
    printed = capsys.readouterr()
    assert f"the security group {name} was not found" in printed.err
    assert "TCP port 8091 is not open" in printed.out
    assert "try again; what exists is kept" in printed.out
    assert run("remove", "--apply") == 0
    assert cloud.state == state


def test_two_groups_of_one_name_are_refused(cloud: Cloud) -> None:
    """A leftover of another cluster with the same infraID must not get the rule."""
    state = cloud.state
    state["aws"]["groups"]["sg-0c"] = dict(state["aws"]["groups"]["sg-0b"])
    cloud.state = state
    results = firewall.run(firewall.create(plan_on(Platform.AWS)))
    assert results[-1].detail.endswith("exists 2 times: sg-0b, sg-0c")


def test_a_priority_that_another_azure_rule_has_is_a_failure(cloud: Cloud) -> None:
    """Azure's error is shown; the other rule is untouched."""
    existing_vnet(cloud)
    state = cloud.state
    state["azure"]["groups"]["their-nsg"]["rules"]["theirs"] = {"priority": "1891"}
    cloud.state = state
    results = firewall.run(firewall.create(plan_on(Platform.AZURE)))
    assert "SecurityRuleConflict" in results[-1].detail
    assert cloud.state == state


def test_what_exists_already_is_reported_and_kept(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run finds the group, the rules and the attachment."""
    assert run("create", "--platform=aws", "--apply") == 0
    first = capsys.readouterr().out
    assert "found the vpc of the running instance" in first
    assert "found the region of the instance: eu-west-1" in first
    opened = cloud.state
    assert run("create", "--platform=aws", "--apply") == 0
    assert capsys.readouterr().out.count("  unchanged: ") == 3
    assert cloud.state == opened


def test_the_record_exists_before_the_first_command(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that cannot be written stops everything."""
    before = cloud.state
    assert run("create", "--platform=aws", "--apply", "--record=/proc/x.json") == 1
    assert "cannot write /proc/x.json" in capsys.readouterr().err
    assert cloud.state == before


def test_a_record_is_kept_until_the_removal_succeeds(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that it can be repeated, with the command that is printed."""
    assert run("create", "--platform=gcp", "--apply") == 0
    printed = capsys.readouterr().out
    assert "TCP port 8091 is open" in printed
    assert f"bootbridge firewall remove --record {RECORD} --apply" in printed
    state = cloud.state
    cloud.state = state | {"faults": {"firewall-rules delete": "ERROR: (gcloud) backend error"}}
    assert run("remove", "--apply") == 2
    assert "1 rule not removed" in capsys.readouterr().out
    assert Path(RECORD).exists()
    cloud.state = replaced(cloud)
    assert run("remove", "--apply") == 0
    assert "TCP port 8091 is closed" in capsys.readouterr().out
    assert not Path(RECORD).exists()


def replaced(cloud: Cloud) -> dict[str, object]:
    return cloud.state | {"faults": {}}


def test_settings_that_would_be_flags_are_rejected(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """A value becomes a word of a command."""
    for line in ("region: --endpoint-url=http://x", "region: '@group@'", "region: [a]"):
        assert run("create", write_config("aws", line)) == 1
        assert "install-config.yaml: platform.aws.region: invalid value" in capsys.readouterr().err


def test_a_timeout_of_a_lookup_is_a_failure(cloud: Cloud) -> None:
    """Also in a removal, which goes on with the next action."""
    (cloud.directory / "bin" / "az").write_text("#!/bin/sh\nexec sleep 60\n")
    plan = replace(plan_on(Platform.AZURE))
    results = firewall.run(firewall.remove(plan), keep_going=True, timeout=0.2)
    assert [result.detail for result in results] == ["az timed out after 0.2s"]
