"""The manifests: what each promises about safety, reach and removal, in every variant."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
import yaml

from bootbridge.bootstrap.machine.node_values import PLACEHOLDERS
from bootbridge.bootstrap.plan.plan import BOOTSTRAP_ONLY, ClusterNetwork, Flavour, Networking, Plan
from bootbridge.bootstrap.plan.ports import Ports
from bootbridge.bootstrap.render import manifests, program_flags
from bootbridge.tunnel.identifiers import parse_identifiers
from tests.bootstrap.render.manifest_variants import ALL, IMAGES, IPV6, VALUES, Variant

every_variant = pytest.mark.parametrize("variant", ALL, ids=str)
PAYLOAD, OURS = IMAGES


def pod_spec(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]
    return spec if manifest["kind"] == "Pod" else spec["template"]["spec"]


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod_spec(manifest)["containers"]
    return dict(only)


def flags_of(manifest: dict[str, Any]) -> dict[str, str]:
    pairs = [argument.removeprefix("--").partition("=") for argument in container(manifest)["args"]]
    assert len({name for name, _, _ in pairs}) == len(pairs), "a flag is given twice"
    return {name: value for name, _, value in pairs}


def kubeadm(**fields: Any) -> Plan:
    return Plan(flavour=Flavour.KUBEADM, image=OURS, **fields)


# --- all of them


@every_variant
def test_everything_is_labelled_as_bootstrap_only(variant: Variant) -> None:
    """Removal goes by that label; what lacks it would stay."""
    for manifest in variant.objects:
        assert manifest["metadata"]["labels"][BOOTSTRAP_ONLY] == "true"
    template = manifests.agent_daemonset(variant.plan, VALUES)["spec"]["template"]
    assert template["metadata"]["labels"][BOOTSTRAP_ONLY] == "true"


@every_variant
def test_yaml_gives_back_the_very_manifest(variant: Variant) -> None:
    """Without aliases, in one document, with one newline at the end."""
    for manifest in variant.objects:
        text = manifests.to_yaml(manifest)
        assert yaml.safe_load(text) == manifest
        assert not re.search(rb"[&*]id\d", text)
        assert text.endswith(b"\n")
        assert not text.endswith(b"\n\n")
        assert manifests.to_yaml(manifest) == text


@every_variant
def test_containers_can_do_nothing_beyond_their_work(variant: Variant) -> None:
    """No capability, no way to more, nothing to write to but what is mounted."""
    for manifest in (
        manifests.server_pod(variant.plan, VALUES),
        manifests.agent_daemonset(variant.plan, VALUES),
    ):
        context = container(manifest)["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["allowPrivilegeEscalation"] is False
        assert context["privileged"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod_spec(manifest)["automountServiceAccountToken"] is False


@every_variant
def test_pods_run_wherever_and_whenever_they_are_needed(variant: Variant) -> None:
    """Taints are no hindrance, and other pods give way."""
    for manifest in (
        manifests.server_pod(variant.plan, VALUES),
        manifests.agent_daemonset(variant.plan, VALUES),
    ):
        assert pod_spec(manifest)["tolerations"] == [{"operator": "Exists"}]
        assert pod_spec(manifest)["priorityClassName"] == "system-node-critical"
        assert set(container(manifest)["resources"]["requests"]) == {"cpu", "memory"}


@every_variant
def test_the_grace_period_is_longer_than_the_programs_own_end(variant: Variant) -> None:
    """Running connections are not cut off by the kubelet."""
    server = pod_spec(manifests.server_pod(variant.plan, VALUES))
    agent = pod_spec(manifests.agent_daemonset(variant.plan, VALUES))
    assert server["terminationGracePeriodSeconds"] > program_flags.SERVER_DRAIN_SECONDS
    assert agent["terminationGracePeriodSeconds"] > program_flags.AGENT_DRAIN_SECONDS


def test_new_certificates_make_new_pods() -> None:
    """The originals read their certificates once; the pods must change with them."""
    renewed = replace(VALUES, ca_cert_base64="bmV3")
    plan = Plan()
    assert manifests.server_pod(plan, renewed) != manifests.server_pod(plan, VALUES)
    templates = [manifests.agent_daemonset(plan, values)["spec"]["template"] for values in (renewed, VALUES)]
    assert templates[0] != templates[1]


@every_variant
def test_the_agents_key_is_in_the_secret_alone(variant: Variant) -> None:
    """No annotation, argument or variable shows it."""
    for manifest in variant.objects:
        shown = VALUES.agent_key_base64 in str(manifest)
        assert shown == (manifest["kind"] == "Secret")


# --- the server


@every_variant
def test_only_agents_reach_the_server_from_outside(variant: Variant) -> None:
    """Health and admin ports are on loopback, and probed there."""
    pod = manifests.server_pod(variant.plan, VALUES)
    flags = flags_of(pod)
    assert flags["health-bind-address"] == flags["admin-bind-address"] == "127.0.0.1"
    assert flags["server-port"] == "0"
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        get = container(pod)[probe]["httpGet"]
        assert (get["host"], str(get["port"]), get["path"]) == ("127.0.0.1", flags["health-port"], path)


@every_variant
def test_the_server_is_root_without_privileges(variant: Variant) -> None:
    """Its key is root's (0600) and so is the socket's directory: the owner needs no capability."""
    context = container(manifests.server_pod(variant.plan, VALUES))["securityContext"]
    assert context["runAsUser"] == 0
    assert "runAsNonRoot" not in context


@every_variant
def test_the_server_finds_its_files_where_the_plan_puts_them(variant: Variant) -> None:
    """Each path in a flag lies below a mount of the right host directory."""
    plan, pod = variant.plan, manifests.server_pod(variant.plan, VALUES)
    mounts = {mount["name"]: mount for mount in container(pod)["volumeMounts"]}
    on_host = {volume["name"]: volume["hostPath"]["path"] for volume in pod_spec(pod)["volumes"]}

    def host_path(flag: str) -> tuple[str, bool]:
        path = flags_of(pod)[flag]
        (mount,) = [each for each in mounts.values() if path.startswith(each["mountPath"] + "/")]
        return on_host[mount["name"]] + path.removeprefix(mount["mountPath"]), mount.get("readOnly", False)

    assert host_path("uds-name") == (plan.paths.socket, False)
    assert host_path("cluster-cert") == (plan.paths.server_cert, True)
    assert host_path("cluster-key") == (plan.paths.server_key, True)
    assert host_path("cluster-ca-cert") == (plan.paths.ca_cert, True)


@every_variant
def test_the_server_speaks_what_the_kube_apiserver_is_told_to_speak(variant: Variant) -> None:
    """One plan, one protocol."""
    flags = flags_of(manifests.server_pod(variant.plan, VALUES))
    assert flags["mode"] == {"GRPC": "grpc", "HTTPConnect": "http-connect"}[variant.plan.protocol]


# --- the agents


@every_variant
def test_agents_are_never_root_and_can_read_their_secret(variant: Variant) -> None:
    """By a group of their own, or one that OpenShift's restricted-v2 picks together with the user."""
    spec = pod_spec(manifests.agent_daemonset(variant.plan, VALUES))
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True
    (volume,) = spec["volumes"]
    assert volume["secret"]["defaultMode"] == 0o440
    if variant.plan.flavour is Flavour.OPENSHIFT and not variant.plan.host_network:
        assert not {"runAsUser", "fsGroup"} & context.keys(), "a fixed user is outside the SCC's range"
    else:
        assert context["fsGroup"] == context["runAsUser"] > 0


@every_variant
def test_agents_fit_the_level_that_their_namespace_enforces(variant: Variant) -> None:
    """Restricted, unless they share the host's network, which only privileged allows."""
    labels = manifests.namespace(variant.plan)["metadata"]["labels"]
    level = "privileged" if variant.plan.host_network else "restricted"
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {level}


@every_variant
def test_openshift_puts_no_obstacles_in_the_agents_way(variant: Variant) -> None:
    """No default node selector, no re-labelling, and an SCC that lets them in."""
    metadata = manifests.namespace(variant.plan)["metadata"]
    template = manifests.agent_daemonset(variant.plan, VALUES)["spec"]["template"]["metadata"]
    if variant.plan.flavour is not Flavour.OPENSHIFT:
        assert not any("openshift" in key for key in metadata["labels"].keys() - {BOOTSTRAP_ONLY})
        assert "annotations" not in metadata
        return
    assert metadata["annotations"] == {"openshift.io/node-selector": ""}
    assert metadata["labels"]["security.openshift.io/scc.podSecurityLabelSync"] == "false"
    scc_off = metadata["labels"].get("security.openshift.io/disable-securitycontextconstraints")
    required = template["annotations"].get("openshift.io/required-scc")
    assert (scc_off, required) == (("true", None) if variant.plan.host_network else (None, "restricted-v2"))


@every_variant
def test_agents_are_probed_where_they_listen(variant: Variant) -> None:
    """On the host's network on loopback alone, else on the pod's address."""
    daemonset = manifests.agent_daemonset(variant.plan, VALUES)
    flags = flags_of(daemonset)
    bound = "127.0.0.1" if variant.plan.host_network else None
    assert flags.get("health-server-host") == bound
    assert flags["admin-bind-address"] == "127.0.0.1"
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        get = container(daemonset)[probe]["httpGet"]
        assert (get.get("host"), str(get["port"]), get["path"]) == (bound, flags["health-server-port"], path)


def test_the_daemonset_selects_its_own_pods() -> None:
    """The selector is a part of the template's labels, and never changes afterwards."""
    spec = manifests.agent_daemonset(Plan(), VALUES)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("plan", "identifiers"),
    [
        (Plan(), "host=$(NODE_NAME)&ipv4=$(HOST_IP)&cidr=$(POD_IP)/23&default-route=true"),
        (Plan(networks=IPV6), "host=$(NODE_NAME)&ipv6=$(HOST_IP)&cidr=$(POD_IP)/64&default-route=true"),
        (Plan(host_network=True), "host=$(NODE_NAME)&ipv4=$(HOST_IP)&default-route=true"),
        (kubeadm(), "host=$(NODE_NAME)&ipv4=$(HOST_IP)&cidr=$(POD_IP)/23&default-route=true"),
    ],
)
def test_agents_tell_what_they_stand_for(plan: Plan, identifiers: str) -> None:
    """Their node, the pods beside them where they know them, and everything else."""
    daemonset = manifests.agent_daemonset(plan, VALUES)
    assert flags_of(daemonset)["agent-identifiers"] == identifiers
    variables = {
        variable["name"]: variable["valueFrom"]["fieldRef"]["fieldPath"]
        for variable in container(daemonset)["env"]
    }
    assert variables == {
        "NODE_NAME": "spec.nodeName",
        "HOST_IP": "status.hostIP",
        "POD_IP": "status.podIP",
    }
    assert set(re.findall(r"\$\((\w+)\)", identifiers)) <= variables.keys()


def test_a_pods_address_stands_for_the_pods_of_its_node() -> None:
    """Host bits are cleared by the server, so the agent need not know its node's share."""
    text = flags_of(manifests.agent_daemonset(Plan(), VALUES))["agent-identifiers"]
    filled = (
        text.replace("$(NODE_NAME)", "n1")
        .replace("$(HOST_IP)", "10.0.0.7")
        .replace("$(POD_IP)", "10.129.3.9")
    )
    identifiers = parse_identifiers(filled, strict=True)
    assert identifiers.networks == (ip_network("10.129.2.0/23"),)
    assert identifiers.default_route


def test_with_several_pod_networks_an_agent_claims_no_neighbours_pods() -> None:
    """The smallest share of the primary family is taken; dual stack adds nothing to it."""
    cluster = (
        ClusterNetwork(ip_network("10.128.0.0/14"), 23),
        ClusterNetwork(ip_network("10.132.0.0/14"), 25),
        ClusterNetwork(ip_network("fd01::/48"), 64),
    )
    plan = Plan(networks=Networking(cluster=cluster))
    assert "cidr=$(POD_IP)/25&" in flags_of(manifests.agent_daemonset(plan, VALUES))["agent-identifiers"]


# --- the image decides about flags

# Flags that the originals of 4.11 to 4.22 lack, and those that no original has.
NEWER_THAN_SOME_PAYLOADS = {
    "tls-min-version",
    "xfr-channel-size",
    "graceful-shutdown-timeout",
    "backend-dial-timeout",
    "enable-lease-controller",
    "lease-namespace",
    "lease-label",
    "kube-api-content-type",
    "kubeconfig",
    "count-server-leases",
    "server-count-source",
}
ONLY_OURS = {"direct-cidrs", "drain-timeout", "stall-timeout", "log-format"}


@every_variant
def test_payload_images_get_only_flags_that_every_release_has(variant: Variant) -> None:
    """From 4.11 on; an unknown flag would end the program at its start."""
    used = flags_of(manifests.server_pod(variant.plan, VALUES)).keys()
    used |= flags_of(manifests.agent_daemonset(variant.plan, VALUES)).keys()
    assert variant.plan.image.is_ours or not used & (NEWER_THAN_SOME_PAYLOADS | ONLY_OURS)


def test_our_server_reaches_kubelets_before_there_is_an_agent() -> None:
    """Logs and exec work from the first minute, over the machine networks and nowhere else."""
    networks = Networking(machine=(ip_network("10.1.0.0/16"), ip_network("fd10::/64")))
    flags = flags_of(manifests.server_pod(Plan(image=OURS, networks=networks), VALUES))
    assert flags["proxy-strategies"].split(",")[-1] == "direct"
    assert flags["direct-cidrs"] == "10.1.0.0/16,fd10::/64"


def test_ports_come_from_the_plan() -> None:
    """None is written a second time."""
    ports = Ports(agent=1111, server_health=2222, server_admin=3333, agent_health=4444, agent_admin=5555)
    plan = Plan(ports=ports)
    server, agent = (
        flags_of(m) for m in (manifests.server_pod(plan, VALUES), manifests.agent_daemonset(plan, VALUES))
    )
    assert (server["agent-port"], server["health-port"], server["admin-port"]) == ("1111", "2222", "3333")
    assert (agent["proxy-server-port"], agent["health-server-port"], agent["admin-server-port"]) == (
        "1111",
        "4444",
        "5555",
    )


# --- templates


@every_variant
def test_templates_hold_every_placeholder_and_nothing_to_run_yet(variant: Variant) -> None:
    """Filled in as sed does it, they are the manifests themselves."""
    plan = variant.plan
    tree = manifests.templates(plan)
    assert {path.rpartition("/")[2] for path in tree} == {
        "namespace.yaml",
        "agent-secret.yaml",
        "agent-daemonset.yaml",
        "server-pod.yaml",
    }
    assert all(path.startswith(plan.paths.templates + "/") for path in tree)
    values = replace(VALUES, image=plan.image.reference)
    expected = {
        "namespace.yaml": manifests.namespace(plan),
        "agent-secret.yaml": manifests.agent_secret(plan, values),
        "agent-daemonset.yaml": manifests.agent_daemonset(plan, values),
        "server-pod.yaml": manifests.server_pod(plan, values),
    }
    for path, asset in tree.items():
        text = asset.data.decode()
        for name, placeholder in vars(PLACEHOLDERS).items():
            text = text.replace(placeholder, getattr(values, name))
        assert yaml.safe_load(text) == expected[path.rpartition("/")[2]]


def test_the_payloads_image_is_filled_in_on_the_node() -> None:
    """Its digest stands in the release image, which only the node has."""
    tree = manifests.templates(Plan())
    assert PLACEHOLDERS.image in tree[f"{Plan().paths.templates}/server-pod.yaml"].data.decode()


@pytest.mark.parametrize(
    "text",
    [
        "y",
        "n",
        "on",
        "null",
        "~",
        "1",
        "1.5",
        "1e3",
        "0o17",
        "0x1F",
        "1_000",
        "12:30",
        "",
        " a",
        "@x",
        "- a",
        "a: b",
        "#a",
    ],
)
def test_text_stays_text_for_go_programs_too(text: str) -> None:
    """What either reader could take for something else is in quotes."""
    line = manifests.to_yaml({"key": text}).decode().rstrip("\n")
    assert yaml.safe_load(line) == {"key": text}
    assert line.removeprefix("key: ")[0] in "'\""
