"""Reads the installer's install-config.yaml: fields, defaults and errors."""

from __future__ import annotations

import json
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.bootstrap.plan.cloud import CloudSettings
from bootbridge.bootstrap.plan.install_config import parse
from bootbridge.bootstrap.plan.plan import Networking, Platform
from bootbridge.errors import OperatorError

FULL = """\
apiVersion: v1
metadata:
  name: demo
baseDomain: example.com
fips: true
featureSet: TechPreviewNoUpgrade
controlPlane:
  name: master
  replicas: 5
compute:
- name: worker
  replicas: 2
networking:
  networkType: OVNKubernetes
  machineNetwork:
  - cidr: 192.168.10.0/24
  - cidr: fd2e:6f44:5dd8::/64
  clusterNetwork:
  - cidr: 10.132.0.0/14
    hostPrefix: 22
  - cidr: fd01::/48
  serviceNetwork:
  - 172.31.0.0/16
  - fd02::/112
platform:
  baremetal:
    apiVIPs: [192.168.10.2]
pullSecret: '{"auths": {"secret": "never shown"}}'
"""


def with_networking(text: str) -> str:
    return f"apiVersion: v1\nplatform: {{none: {{}}}}\nnetworking:\n{textwrap.indent(text, '  ')}\n"


def test_all_fields_that_the_tunnel_needs_are_read() -> None:
    """With dual stack, networks keep their order, so that the primary family is first."""
    config = parse(FULL)
    assert config.platform is Platform.BAREMETAL
    assert not config.is_in_place
    assert list(map(str, config.networks.machine)) == ["192.168.10.0/24", "fd2e:6f44:5dd8::/64"]
    assert [(str(network.cidr), network.host_prefix) for network in config.networks.cluster] == [
        ("10.132.0.0/14", 22),
        ("fd01::/48", 64),
    ]
    assert list(map(str, config.networks.service)) == ["172.31.0.0/16", "fd02::/112"]
    assert config.networks.families == (4, 6)


def test_an_ipv6_first_cluster_has_ipv6_as_its_primary_family() -> None:
    """The first service network decides."""
    config = parse(with_networking("serviceNetwork: [fd02::/112, 172.30.0.0/16]"))
    assert config.networks.families == (6, 4)


def test_missing_fields_have_the_installers_defaults() -> None:
    """Some depend on the platform."""
    config = parse("apiVersion: v1\nplatform: {none: {}}")
    assert (config.platform, config.networks) == (Platform.NONE, Networking())
    powervs = parse("apiVersion: v1\nplatform: {powervs: {}}")
    assert list(map(str, powervs.networks.machine)) == ["192.168.0.0/24"]


def test_the_deprecated_field_for_the_machine_network_is_read() -> None:
    """The installer accepts it, too."""
    config = parse(with_networking("machineCIDR: 10.77.0.0/16"))
    assert list(map(str, config.networks.machine)) == ["10.77.0.0/16"]


def test_bootstrap_in_place_is_recognised() -> None:
    """It has only one control plane, which needs no tunnel."""
    text = "apiVersion: v1\nplatform: {none: {}}\nbootstrapInPlace: {installationDisk: /dev/vda}"
    assert parse(text).bootstrap_in_place.installation_disk == "/dev/vda"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("apiVersion: v2\nplatform: {none: {}}", "apiVersion"),
        ("platform: {none: {}}", "apiVersion"),
        ("apiVersion: v1", "platform"),
        ("apiVersion: v1\nplatform: {aws: {}, gcp: {}}", "platform"),
        ("apiVersion: v1\nplatform: {moon: {}}", "platform.moon"),
        ("apiVersion: v1\nplatform: aws", "platform"),
        ("apiVersion: v1\nplatform: {libvirt: {}}", "platform"),
        (
            "apiVersion: v1\nplatform: {none: {}}\nbootstrapInPlace: {installationDisk: 3}",
            "bootstrapInPlace.installationDisk",
        ),
        (with_networking("machineNetwork: [{cidr: 10.0.0.0/33}]"), "networking.machineNetwork[0].cidr"),
        (with_networking("machineNetwork: 10.0.0.0/16"), "networking.machineNetwork"),
        (with_networking("serviceNetwork: [10.0.0.0/16, 7]"), "networking.serviceNetwork[1]"),
        (with_networking("clusterNetwork: [10.0.0.0/16]"), "networking.clusterNetwork[0]"),
        (
            with_networking("clusterNetwork: [{cidr: 10.0.0.0/16, hostPrefix: 8}]"),
            "networking.clusterNetwork[0].hostPrefix",
        ),
        (with_networking("clusterNetwork: [{cidr: 10.0.0.1/16}]"), "networking.clusterNetwork[0].cidr"),
    ],
)
def test_an_error_names_the_file_and_the_field(text: str, named: str) -> None:
    with pytest.raises(OperatorError) as caught:
        parse(text, "dir/install-config.yaml")
    assert caught.value.subject == f"dir/install-config.yaml: {named}"


@pytest.mark.parametrize("text", ["", "- a list", "a: [", "\x00", "a: b: c", b"\xff\xfe\xfa", "&a [*a]"])
def test_an_error_in_invalid_yaml_names_the_file(text: str | bytes) -> None:
    with pytest.raises(OperatorError, match=r"install-config\.yaml"):
        parse(text)


def test_fields_that_the_tunnel_does_not_need_are_not_read() -> None:
    """The installer judges them."""
    fields = ("metadata", "controlPlane", "compute", "fips", "featureSet", "baseDomain")
    others = "".join(f"{field}: [7]\n" for field in fields)
    assert parse(f"apiVersion: v1\nplatform: {{none: {{}}}}\n{others}").networks == Networking()


def test_no_error_contains_the_pull_secret() -> None:
    """Errors are logged."""
    with pytest.raises(OperatorError) as caught:
        parse(FULL.replace("apiVersion: v1", "apiVersion: v3"))
    assert "never shown" not in str(caught.value)


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_gives_a_config_or_an_operator_error(text: str | bytes) -> None:
    try:
        parse(text)
    except OperatorError:
        pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


SECTIONS = ("networking", "bootstrapInPlace")
HEAD = {"apiVersion": st.just("v1"), "platform": st.just({"none": {}})}


@given(st.fixed_dictionaries(HEAD, optional=dict.fromkeys(SECTIONS, json_values)))
def test_fields_of_any_type_give_a_config_or_an_operator_error(document: dict[str, object]) -> None:
    """An error names the file."""
    try:
        parse(json.dumps(document))
    except OperatorError as error:
        subject = error.subject
    else:
        subject = ""
    assert not subject or subject.startswith("install-config.yaml")


@pytest.mark.parametrize("platform", ["alibabacloud", "libvirt"])
def test_a_retired_platform_is_named(platform: str) -> None:
    """Not as an unknown one."""
    with pytest.raises(OperatorError, match=f"retired platform '{platform}'") as error:
        parse(f"apiVersion: v1\nplatform: {{{platform}: {{}}}}")
    assert "current installers do not support it" in error.value.hint


def test_a_bootstrap_in_place_is_recognised() -> None:
    config = parse("apiVersion: v1\nplatform: {none: {}}\nbootstrapInPlace: {installationDisk: /dev/sda}")
    assert config.is_in_place


@pytest.mark.parametrize(
    ("platform", "settings"),
    [
        ("aws: {region: eu-west-1}", {"region": "eu-west-1"}),
        (
            "gcp: {projectID: p1, region: r, network: n, networkProjectID: p2}",
            {"project": "p1", "network": "n", "network_project": "p2"},
        ),
        (
            "azure: {region: r, resourceGroupName: g, virtualNetwork: v, cloudName: AzureChinaCloud}",
            {"resource_group": "g", "cloud_name": "AzureChinaCloud"},
        ),
        ("ibmcloud: {region: eu-de, resourceGroupName: g}", {"region": "eu-de", "resource_group": "g"}),
        ("powervs: {region: dal, zone: dal10, vpcRegion: us-south}", {"region": "us-south"}),
        ("openstack: {cloud: mycloud}", {"cloud_name": "mycloud"}),
        ("vsphere: {vcenters: []}", {}),
        ("none: {}", {}),
        (
            "gcp: {projectID: p1, firewallRulesManagement: Unmanaged}",
            {"project": "p1", "firewall_owner": "platform.gcp.firewallRulesManagement: Unmanaged"},
        ),
        ("gcp: {projectID: p1, firewallRulesManagement: Managed}", {"project": "p1"}),
    ],
)
def test_the_place_in_the_cloud_is_read(platform: str, settings: dict[str, str]) -> None:
    """What the firewall's commands need, and nothing else."""
    assert parse(f"apiVersion: v1\nplatform: {{{platform}}}").cloud == CloudSettings(**settings)
