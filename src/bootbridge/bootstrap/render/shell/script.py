"""Generates the script for bootstrap nodes without Python, whose functions bootkube.sh calls.

`bootbridge_setup` creates the certificates and starts the server, `bootbridge_manifests` writes the agents'
manifests and applies them beside cluster-bootstrap, `bootbridge_cleanup` waits for the end of the node's
kube-apiserver, removes everything and writes the receipt. The script
consists of settings, whose names and paths all come from the plan, and of the functions in the *.sh files.

Required on the node: bash, coreutils, sed, jq, ip, oc, podman, systemctl; openssl, or a payload image with
it; nft, if the image's server cannot bind its health port to loopback.
"""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from bootbridge.bootstrap.install.receipt import Receipt
from bootbridge.bootstrap.machine import address, network
from bootbridge.bootstrap.machine.node_values import PLACEHOLDERS
from bootbridge.bootstrap.plan import payload_programs
from bootbridge.bootstrap.plan.plan import PAYLOAD_IMAGE_NAME, BootkubeStage, Flavour, Plan
from bootbridge.bootstrap.render import egress_selector, program_flags
from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import to_yaml
from bootbridge.trust.authority import RENEWAL_FRACTION

SECTIONS = (
    *("common", "programs", "address", "certificates", "setup", "manifests", "apply"),
    *("apiserver_end", "cleanup", "removal", "main"),
)
RULES = {
    "ADDRESS_RULES": "address.jq",
    "APISERVER_ADDRESS_RULES": "apiserver_address.jq",
    "RECEIPT_RULES": "receipt.jq",
    "REMAINS_EVENT": "remains_event.jq",
}
# Searched for openssl if the node has none: images that every payload has, small ones first.
OPENSSL_PAYLOAD_IMAGES = ("cli", "tools", "must-gather")
SECONDS = {
    "REQUEST": 10,
    "OC": 20,
    "OBJECTS_END": 20,
    # The apply loop may be in one last request of oc.
    "APPLY_END": 30,
    # The kubelet reads its directory every 20 s at the latest, then drains the server.
    "SERVER_END": 25 + program_flags.SERVER_DRAIN_SECONDS,
    # The first call pulls the image.
    "HELP": 300,
    "HEALTH": 3,
    # From the manifest to a server that answers. The image has been pulled before.
    "SERVER_START": 90,
    # The second look, minutes later, just before the kube-apiserver starts.
    "SERVER_RECHECK": 10,
    # cluster-bootstrap waits 20 minutes for the API server and at most 60 for its manifests.
    "APPLY": 5400,
    # The kubelet deletes the pod within 20 s and kills it after its grace period of 135 s.
    "APISERVER_END": 180,
    # For all deletions together, while the API server is unstable.
    "API": 120,
    # The unit that continues the removal, and its pause between two attempts.
    "RETRY": 1800,
    "RETRY_PAUSE": 15,
}
# Closes the health port of a server that cannot bind it to loopback.
NFT_TABLE = "bootbridge"
BYPASS_NOTE = (
    "the server does not answer: the bootstrap goes on without the tunnel, the kube-apiserver dials directly"
)
# The most objects that a plan creates in the cluster: those of our image.
OBJECTS_MAX = 5
# The longest time of one removal: it deletes the objects, waits for the server, then for the objects, and
# may need one last list of each. Each call of oc or systemctl can need its whole limit.
REMOVAL_SECONDS_MAX = (
    SECONDS["API"] + SECONDS["SERVER_END"] + SECONDS["OBJECTS_END"] + OBJECTS_MAX * SECONDS["OC"]
)
# The longest time for which the clean-up holds bootkube.sh: it ends the apply loop, waits for the
# kube-apiserver, removes, writes the Event, and enables and starts the unit.
HOLD_SECONDS_MAX = (
    SECONDS["APPLY_END"] + SECONDS["APISERVER_END"] + REMOVAL_SECONDS_MAX + (1 + 2) * SECONDS["OC"]
)
# When the node shuts down, the unit ends the attempt in progress and makes one more. Then it writes the
# Event, or disables itself.
LAST_ATTEMPT_SECONDS_MAX = REMOVAL_SECONDS_MAX + SECONDS["OC"]
# The rest is for the shell's own work: it starts some hundred processes, on a node that is shutting down.
RETRY_STOP_SECONDS = LAST_ATTEMPT_SECONDS_MAX + 30
APISERVER_PORT = 6443
REASON_CHARACTERS = 300
_STAGES = {
    "CERTS": BootkubeStage.CERTS,
    "SERVER": BootkubeStage.SERVER,
    "AGENT": BootkubeStage.AGENT_MANIFEST,
    "APPLY": BootkubeStage.AGENT_APPLY,
    "APISERVER_END": BootkubeStage.APISERVER_END,
    "CLEANUP": BootkubeStage.CLEANUP,
}
_STAGES_WITH_MARKER = ("CERTS", "SERVER", "AGENT", "CLEANUP")
_PATHS = (
    *("state", "tls", "ca_cert", "server_cert", "server_key", "agent_cert", "agent_key", "templates"),
    *("server_pod", "cluster_manifests", "namespace_manifest", "secret_manifest", "daemonset_manifest"),
    *("role_manifest", "role_binding_manifest", "apiserver_address"),
    *("program_flags", "bypass", "notes", "egress_config", "socket", "kubeconfig", "loopback_kubeconfig"),
    *("apiserver_config", "receipt", "agent_objects", "cluster_bootstrap_marker"),
)
_HEADER = """\
#!/usr/bin/env bash
# Installs the tunnel from this node's kube-apiserver to the pod network, and removes it after the bootstrap.
# bootkube.sh sources this file. Manual use: `{script} address` and `{script} cleanup`; after an abandoned
# bootstrap `{script} cleanup --abandoned`, which does not wait for the kube-apiserver.
# Generated by bootbridge.

# --- settings"""


def scripts(plan: Plan) -> Tree:
    """Returns the script at its path on the node. Nodes of kubeadm need none: they have Python."""
    if plan.flavour is not Flavour.OPENSHIFT:
        return {}
    return {plan.paths.hook_script: Asset(_script(plan).encode(), 0o555)}


def _script(plan: Plan) -> str:
    settings = [f"BOOTBRIDGE_{name}={shlex.quote(value)}" for name, value in _settings(plan).items()]
    rules = [f"BOOTBRIDGE_{name}=$(cat <<'JQ'\n{_section(file)}JQ\n)" for name, file in RULES.items()]
    parts = [_section(f"{name}.sh") for name in SECTIONS]
    header = _HEADER.format(script=plan.paths.hook_script)
    return "\n".join([header, *settings, "BOOTBRIDGE_ADDRESSES=()", *rules, "", *parts])


def _section(name: str) -> str:
    return (resources.files("bootbridge.bootstrap.render.shell") / name).read_text()


def _settings(plan: Plan) -> dict[str, str]:
    """Returns the script's variables, without their prefix."""
    return {
        **_paths(plan),
        **{f"{name}_STAGE": stage.value for name, stage in _STAGES.items()},
        **{f"{name}_MARKER": plan.paths.stage_marker(_STAGES[name]) for name in _STAGES_WITH_MARKER},
        **{f"{name}_SECONDS": str(seconds) for name, seconds in SECONDS.items()},
        "NAMESPACE": plan.namespace,
        "SELECTOR": plan.selector,
        "OBJECTS": " ".join(plan.agent_objects),
        "OBJECTS_REVERSED": " ".join(reversed(plan.agent_objects)),
        "PROVES_NODES": "yes" if plan.proves_nodes else "",
        "ROLE_NAME": plan.role_name,
        "SECRET_NAME": plan.secret_name,
        "DAEMONSET_NAME": plan.daemonset_name,
        "AGENT_PORT": str(plan.ports.agent),
        "HEALTH_PORT": str(plan.ports.server_health),
        "SERVER_POD_NAME": plan.server_pod_name,
        "OPTIONAL_FLAGS": "" if plan.image.is_ours else " ".join(payload_programs.OPTIONAL_FLAGS),
        "HEALTH_FLAG": payload_programs.HEALTH_FLAG,
        "BRACKETS_FLAG": payload_programs.BRACKETS_FLAG,
        "FIRST_RELEASE": payload_programs.FIRST_RELEASE,
        "NFT_TABLE": NFT_TABLE,
        "BYPASS_NOTE": BYPASS_NOTE,
        "APISERVER_PORT": str(APISERVER_PORT),
        "IMAGE": plan.image.reference,
        "IMAGE_KIND": plan.image.kind,
        "PAYLOAD_IMAGE_NAME": PAYLOAD_IMAGE_NAME,
        "NODE_IPS": " ".join(map(str, plan.node_ips)),
        "MACHINE_NETWORKS": json.dumps(list(map(str, plan.networks.machine))),
        "FAMILIES": json.dumps(plan.networks.families),
        "OUTSIDE_4": network.OUTSIDE[4],
        "OUTSIDE_6": network.OUTSIDE[6],
        "NODE_IP_HINT": address.NODE_IP_HINT,
        "KEY_KIND": plan.key_kind,
        "VALIDITY_SECONDS": str(int(plan.validity.total_seconds())),
        "RENEWAL_FRACTION": str(RENEWAL_FRACTION),
        "CA_NAME": plan.ca_common_name,
        "SERVER_NAME": plan.server_common_name,
        "AGENT_NAME": plan.agent_common_name,
        "OPENSSL_IMAGE": "",
        "OPENSSL_PAYLOAD_IMAGES": " ".join(OPENSSL_PAYLOAD_IMAGES),
        "FINALIZER_REASON": "waiting for finalizers",
        "API_REASON": "API server unreachable",
        "APISERVER_REASON": "the kube-apiserver of this node still runs",
        "REASON_CHARACTERS": str(REASON_CHARACTERS),
        "APPLY_PID": "/run/bootbridge-apply.pid",
        "APPLY_STOP": "/run/bootbridge-apply.stop",
        "RETRY_UNIT": PurePosixPath(plan.paths.cleanup_retry_unit).name,
        "MARK_IMAGE": PLACEHOLDERS.image,
        "MARK_SERVER_HOSTS": PLACEHOLDERS.server_hosts,
        "MARK_CA_CERT": PLACEHOLDERS.ca_cert_base64,
        "MARK_AGENT_CERT": PLACEHOLDERS.agent_cert_base64,
        "MARK_AGENT_KEY": PLACEHOLDERS.agent_key_base64,
        "PLAN_SUMMARY": json.dumps(_summary(plan)),
        "EGRESS_CONFIG_TEXT": to_yaml(egress_selector.configuration(plan)).decode(),
        "DIRECT_CONFIG_TEXT": to_yaml(egress_selector.direct_configuration()).decode(),
    }


def _summary(plan: Plan) -> Any:
    """Returns the plan's part of a receipt."""
    return Receipt(plan, recorded=True, written_at=datetime.now(UTC)).document()["plan"]


def _paths(plan: Plan) -> dict[str, str]:
    paths = {name.upper(): str(getattr(plan.paths, name)) for name in _PATHS}
    seen = {
        "EGRESS_CONFIG_SEEN": plan.paths.egress_config_seen_by_apiserver,
        "APISERVER_CONFIG_SEEN": plan.paths.apiserver_config_seen_by_apiserver,
    }
    return paths | seen
