"""Checks security, network access and labels of the manifests, in every variant."""

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


# --- all manifests


@every_variant
def test_everything_is_labelled_as_bootstrap_only(variant: Variant) -> None:
    """Removal selects by this label."""
    for manifest in variant.objects:
        assert manifest["metadata"]["labels"][BOOTSTRAP_ONLY] == "true"
    template = manifests.agent_daemonset(variant.plan, VALUES)["spec"]["template"]
    assert template["metadata"]["labels"][BOOTSTRAP_ONLY] == "true"


@every_variant
def test_yaml_round_trip(variant: Variant) -> None:
    """One document without aliases, with one newline at the end."""
    for manifest in variant.objects:
        text = manifests.to_yaml(manifest)
        assert yaml.safe_load(text) == manifest
        assert not re.search(rb"[&*]id\d", text)
        assert text.endswith(b"\n")
        assert not text.endswith(b"\n\n")
        assert manifests.to_yaml(manifest) == text


@every_variant
def test_containers_are_unprivileged(variant: Variant) -> None:
    """No capabilities, no privilege escalation, read-only root file system."""
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
def test_pods_tolerate_all_taints_with_high_priority(variant: Variant) -> None:
    for manifest in (
        manifests.server_pod(variant.plan, VALUES),
        manifests.agent_daemonset(variant.plan, VALUES),
    ):
        assert pod_spec(manifest)["tolerations"] == [{"operator": "Exists"}]
        assert pod_spec(manifest)["priorityClassName"] == "system-node-critical"
        assert set(container(manifest)["resources"]["requests"]) == {"cpu", "memory"}


@every_variant
def test_the_grace_period_is_longer_than_the_drain_timeout(variant: Variant) -> None:
    """The kubelet does not kill a draining program."""
    server = pod_spec(manifests.server_pod(variant.plan, VALUES))
    agent = pod_spec(manifests.agent_daemonset(variant.plan, VALUES))
    assert server["terminationGracePeriodSeconds"] > program_flags.SERVER_DRAIN_SECONDS
    assert agent["terminationGracePeriodSeconds"] > program_flags.AGENT_DRAIN_SECONDS


def test_new_certificates_change_the_pods() -> None:
    """The Go programs read their certificates only at the start."""
    renewed = replace(VALUES, ca_cert_base64="bmV3")
    plan = Plan()
    assert manifests.server_pod(plan, renewed) != manifests.server_pod(plan, VALUES)
    templates = [manifests.agent_daemonset(plan, values)["spec"]["template"] for values in (renewed, VALUES)]
    assert templates[0] != templates[1]


@every_variant
def test_the_agents_key_is_only_in_the_secret(variant: Variant) -> None:
    """In no annotation, argument or variable."""
    for manifest in variant.objects:
        shown = VALUES.agent_key_base64 in str(manifest)
        assert shown == (manifest["kind"] == "Secret")


# --- the server


@every_variant
def test_only_the_agent_port_is_public(variant: Variant) -> None:
    """Health and admin ports listen on loopback, where the kubelet probes them."""
    pod = manifests.server_pod(variant.plan, VALUES)
    flags = flags_of(pod)
    assert flags["health-bind-address"] == flags["admin-bind-address"] == "127.0.0.1"
    assert flags["server-port"] == "0"
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        get = container(pod)[probe]["httpGet"]
        assert (get["host"], str(get["port"]), get["path"]) == ("127.0.0.1", flags["health-port"], path)


@every_variant
def test_the_server_is_root_without_privileges(variant: Variant) -> None:
    """Root owns its key (0600) and the socket's directory, so it needs no capability."""
    context = container(manifests.server_pod(variant.plan, VALUES))["securityContext"]
    assert context["runAsUser"] == 0
    assert "runAsNonRoot" not in context


@every_variant
def test_the_servers_paths_are_mounted(variant: Variant) -> None:
    """Each path in a flag is below a mount of the right host directory."""
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
def test_server_and_egress_selector_use_the_same_protocol(variant: Variant) -> None:
    flags = flags_of(manifests.server_pod(variant.plan, VALUES))
    assert flags["mode"] == {"GRPC": "grpc", "HTTPConnect": "http-connect"}[variant.plan.protocol]


# --- the agents


@every_variant
def test_agents_are_never_root_and_can_read_their_secret(variant: Variant) -> None:
    """By their group, or the one that OpenShift's restricted-v2 SCC selects."""
    spec = pod_spec(manifests.agent_daemonset(variant.plan, VALUES))
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True
    volume, *tokens = spec["volumes"]
    assert volume["secret"]["defaultMode"] == 0o440
    if variant.plan.flavour is Flavour.OPENSHIFT and not variant.plan.host_network:
        assert not {"runAsUser", "fsGroup"} & context.keys(), "a fixed user is outside the SCC's range"
    else:
        assert context["fsGroup"] == context["runAsUser"] > 0
    assert len(tokens) == variant.plan.proves_nodes


@every_variant
def test_the_namespace_enforces_the_agents_level(variant: Variant) -> None:
    """Restricted; privileged only for agents in the host network."""
    labels = manifests.namespace(variant.plan)["metadata"]["labels"]
    level = "privileged" if variant.plan.host_network else "restricted"
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {level}


@every_variant
def test_openshift_admits_the_agents(variant: Variant) -> None:
    """No default node selector, no label synchronisation, a matching SCC."""
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
    """In the host network on loopback, otherwise on the pod's address."""
    daemonset = manifests.agent_daemonset(variant.plan, VALUES)
    flags = flags_of(daemonset)
    bound = "127.0.0.1" if variant.plan.host_network else None
    assert flags.get("health-server-host") == bound
    assert flags["admin-bind-address"] == "127.0.0.1"
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        get = container(daemonset)[probe]["httpGet"]
        assert (get.get("host"), str(get["port"]), get["path"]) == (bound, flags["health-server-port"], path)


def test_the_daemonset_selects_its_pods() -> None:
    """The selector is a subset of the template's labels."""
    spec = manifests.agent_daemonset(Plan(), VALUES)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("plan", "identifiers"),
    [
        (Plan(), "host=$(NODE_NAME)&ipv4=$(HOST_IP)&cidr=$(POD_IP)/23&default-route=true"),
        (Plan(networks=IPV6), "host=$(NODE_NAME)&ipv6=$(HOST_IP)&cidr=$(POD_IP)/64&default-route=true"),
        (Plan(host_network=True), "host=$(NODE_NAME)&ipv4=$(HOST_IP)&default-route=true"),
        (Plan(image=OURS), "host=$(NODE_NAME)&ipv4=$(HOST_IP)&cidr=$(POD_IP)/23&default-route=true"),
        (kubeadm(), "host=$(NODE_NAME)&ipv4=$(HOST_IP)&cidr=$(POD_IP)/23&default-route=true"),
    ],
)
def test_agent_identifiers(plan: Plan, identifiers: str) -> None:
    """Their node, its pods if known, and the default route."""
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


def test_a_pod_address_with_prefix_means_the_nodes_pods() -> None:
    """The server clears the host bits."""
    text = flags_of(manifests.agent_daemonset(Plan(), VALUES))["agent-identifiers"]
    filled = (
        text.replace("$(NODE_NAME)", "n1")
        .replace("$(HOST_IP)", "10.0.0.7")
        .replace("$(POD_IP)", "10.129.3.9")
    )
    identifiers = parse_identifiers(filled, strict=True)
    assert identifiers.networks == (ip_network("10.129.2.0/23"),)
    assert identifiers.default_route


def test_several_pod_networks() -> None:
    """The longest prefix of the primary IP version is used, so that no pods of other nodes are included."""
    cluster = (
        ClusterNetwork(ip_network("10.128.0.0/14"), 23),
        ClusterNetwork(ip_network("10.132.0.0/14"), 25),
        ClusterNetwork(ip_network("fd01::/48"), 64),
    )
    plan = Plan(networks=Networking(cluster=cluster))
    assert "cidr=$(POD_IP)/25&" in flags_of(manifests.agent_daemonset(plan, VALUES))["agent-identifiers"]


# --- flags depend on the image

# Flags that the Go programs of 4.11 to 4.22 lack, and those that no Go program has.
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
ONLY_OURS = {
    "agent-identifier-proof",
    "agent-proof-kubeconfig",
    "node-cidr-mask-size-ipv4",
    "node-cidr-mask-size-ipv6",
    "allow-destinations",
    "deny-destinations",
    "direct-cidrs",
    "drain-timeout",
    "stall-timeout",
    "log-format",
}


@every_variant
def test_payload_images_get_only_flags_of_every_release(variant: Variant) -> None:
    """Since 4.11. A Go program exits on an unknown flag."""
    used = flags_of(manifests.server_pod(variant.plan, VALUES)).keys()
    used |= flags_of(manifests.agent_daemonset(variant.plan, VALUES)).keys()
    assert variant.plan.image.is_ours or not used & (NEWER_THAN_SOME_PAYLOADS | ONLY_OURS)


def test_our_server_dials_kubelets_before_an_agent_connects() -> None:
    """Only in the machine networks."""
    networks = Networking(machine=(ip_network("10.1.0.0/16"), ip_network("fd10::/64")))
    flags = flags_of(manifests.server_pod(Plan(image=OURS, networks=networks), VALUES))
    assert flags["proxy-strategies"].split(",")[-1] == "direct"
    assert flags["direct-cidrs"] == "10.1.0.0/16,fd10::/64"


def test_our_agents_dial_only_into_the_clusters_networks() -> None:
    """And into what the operator adds."""
    networks = Networking(machine=(ip_network("10.1.0.0/16"), ip_network("fd10::/64")))
    plan = Plan(image=OURS, networks=networks, allow_destinations=("192.0.2.1/32:443",))
    flags = flags_of(manifests.agent_daemonset(plan, VALUES))
    wanted = "10.128.0.0/14,172.30.0.0/16,10.1.0.0/16,fd10::/64,192.0.2.1/32:443"
    assert flags["allow-destinations"] == wanted


@pytest.mark.parametrize("flavour", Flavour)
def test_our_agents_prove_their_node(flavour: Flavour) -> None:
    """By a token that is bound to their pod, and the permission to read that pod."""
    cluster = (
        ClusterNetwork(ip_network("10.128.0.0/14"), 23),
        ClusterNetwork(ip_network("10.132.0.0/14"), 25),
        ClusterNetwork(ip_network("fd01::/48"), 64),
    )
    plan = Plan(
        flavour=flavour,
        image=replace(OURS, reference="example/bootbridge"),
        networks=Networking(cluster=cluster),
    )
    server = flags_of(manifests.server_pod(plan, VALUES))
    assert server["agent-identifier-proof"] == "token"
    assert server["agent-namespace"] == plan.namespace
    assert server["agent-service-account"] == manifests.agent_role_binding(plan)["subjects"][0]["name"]
    assert (server["node-cidr-mask-size-ipv4"], server["node-cidr-mask-size-ipv6"]) == ("25", "64")
    assert (
        server["agent-proof-kubeconfig"].rpartition("/")[2] == plan.paths.apiserver_address.rpartition("/")[2]
    )
    daemonset = manifests.agent_daemonset(plan, VALUES)
    (token,) = (volume for volume in pod_spec(daemonset)["volumes"] if "projected" in volume)
    (source,) = token["projected"]["sources"]
    (mount,) = (each for each in container(daemonset)["volumeMounts"] if each["name"] == token["name"])
    path = f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
    assert flags_of(daemonset)["service-account-token-path"] == path
    assert "audience" not in source["serviceAccountToken"], "the kube-apiserver must accept it"
    assert manifests.agent_role(plan)["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    ]


def test_ports_come_from_the_plan() -> None:
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
def test_templates_contain_every_placeholder(variant: Variant) -> None:
    """Replaced as sed does it, they give the manifests."""
    plan = variant.plan
    tree = manifests.templates(plan)
    assert all(path.startswith(plan.paths.templates + "/") for path in tree)
    values = replace(VALUES, image=plan.image.reference)
    expected = {
        "namespace.yaml": manifests.namespace(plan),
        "agent-secret.yaml": manifests.agent_secret(plan, values),
        "agent-daemonset.yaml": manifests.agent_daemonset(plan, values),
        "server-pod.yaml": manifests.server_pod(plan, values),
    }
    if plan.image.is_ours:
        expected |= {
            "agent-role.yaml": manifests.agent_role(plan),
            "agent-role-binding.yaml": manifests.agent_role_binding(plan),
        }
    assert {path.rpartition("/")[2] for path in tree} == expected.keys()
    for path, asset in tree.items():
        text = asset.data.decode()
        for name, placeholder in vars(PLACEHOLDERS).items():
            text = text.replace(placeholder, getattr(values, name))
        assert yaml.safe_load(text) == expected[path.rpartition("/")[2]]


def test_the_payload_image_is_a_placeholder() -> None:
    """Only the node knows its digest."""
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
def test_strings_stay_strings_for_go_programs(text: str) -> None:
    """Ambiguous text is quoted."""
    line = manifests.to_yaml({"key": text}).decode().rstrip("\n")
    assert yaml.safe_load(line) == {"key": text}
    assert line.removeprefix("key: ")[0] in "'\""
