"""The script for bootstrap nodes without Python: the functions that bootkube.sh calls.

`bootbridge_setup` makes certificates and starts the server, `bootbridge_manifests` hands the agents to
cluster-bootstrap, `bootbridge_cleanup` takes everything away and writes the receipt. The functions lie
in shell/; in front of them stand the settings, every name and path of which comes from the plan.

Needed on the node: bash, coreutils, sed, jq, ip, oc; openssl, or podman and a payload image with it.
"""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from bootbridge.bootstrap.install.receipt import Receipt
from bootbridge.bootstrap.machine import address, certificates, network
from bootbridge.bootstrap.machine.node_values import PLACEHOLDERS
from bootbridge.bootstrap.plan.plan import PAYLOAD_IMAGE_NAME, BootkubeStage, Flavour, Plan
from bootbridge.bootstrap.render import egress_selector, program_flags
from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import to_yaml

PARTS = ("common", "address", "certificates", "setup", "manifests", "cleanup", "main")
RULES = {"ADDRESS_RULES": "address.jq", "RECEIPT_RULES": "receipt.jq"}
# Where openssl is looked for if the node has none: images that every payload has, small ones first.
OPENSSL_PAYLOAD_IMAGES = ("cli", "tools", "must-gather")
SECONDS = {
    "REQUEST": 10,
    "OC": 20,
    "OBJECTS_END": 20,
    # The kubelet looks at its directory every 20 s at the latest, then lets the server finish.
    "SERVER_END": 25 + program_flags.SERVER_DRAIN_SECONDS,
    "REFRESH": 1200,
}
_STAGES = {
    "CERTS": BootkubeStage.CERTS,
    "SERVER": BootkubeStage.SERVER,
    "AGENT": BootkubeStage.AGENT_MANIFEST,
    "CLEANUP": BootkubeStage.CLEANUP,
}
_HEADER = """\
#!/usr/bin/env bash
# The tunnel from this node's kube-apiserver into the pod network, for as long as the bootstrap lasts.
# Sourced by bootkube.sh; by hand: `{script} address` and `{script} cleanup`.
# Made by bootbridge from one plan: what is created here is what is removed here.

# --- settings"""


def scripts(plan: Plan) -> Tree:
    """The one script, where bootkube.sh sources it; kubeadm's nodes have Python and need none."""
    if plan.flavour is not Flavour.OPENSHIFT:
        return {}
    return {plan.paths.hook_script: Asset(_script(plan).encode(), 0o555)}


def _script(plan: Plan) -> str:
    settings = [f"BOOTBRIDGE_{name}={shlex.quote(value)}" for name, value in _settings(plan).items()]
    rules = [f"BOOTBRIDGE_{name}=$(cat <<'JQ'\n{_part(file)}JQ\n)" for name, file in RULES.items()]
    parts = [_part(f"{name}.sh") for name in PARTS]
    header = _HEADER.format(script=plan.paths.hook_script)
    return "\n".join([header, *settings, "BOOTBRIDGE_ADDRESSES=()", *rules, "", *parts])


def _part(name: str) -> str:
    return (resources.files("bootbridge.bootstrap.render.shell") / name).read_text()


def _settings(plan: Plan) -> dict[str, str]:
    """Every decision that the script needs, by the name that it has there."""
    return {
        **_paths(plan),
        **{f"{name}_STAGE": stage.value for name, stage in _STAGES.items()},
        **{f"{name}_MARKER": plan.paths.stage_marker(stage) for name, stage in _STAGES.items()},
        **{f"{name}_SECONDS": str(seconds) for name, seconds in SECONDS.items()},
        "NAMESPACE": plan.namespace,
        "SELECTOR": plan.selector,
        "AGENT_PORT": str(plan.ports.agent),
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
        "RENEWED_IN_THE_LAST": str(certificates.RENEWED_IN_THE_LAST),
        "CA_NAME": plan.ca_common_name,
        "SERVER_NAME": plan.server_common_name,
        "AGENT_NAME": plan.agent_common_name,
        "OPENSSL_IMAGE": "",
        "OPENSSL_PAYLOAD_IMAGES": " ".join(OPENSSL_PAYLOAD_IMAGES),
        "BEING_FINALISED": "the cluster is still finalising it",
        "MARK_IMAGE": PLACEHOLDERS.image,
        "MARK_SERVER_HOSTS": PLACEHOLDERS.server_hosts,
        "MARK_CA_CERT": PLACEHOLDERS.ca_cert_base64,
        "MARK_AGENT_CERT": PLACEHOLDERS.agent_cert_base64,
        "MARK_AGENT_KEY": PLACEHOLDERS.agent_key_base64,
        "PLAN_SUMMARY": json.dumps(_summary(plan)),
        "EGRESS_CONFIG_TEXT": to_yaml(egress_selector.configuration(plan)).decode(),
    }


def _summary(plan: Plan) -> Any:
    """The plan as a receipt tells of it."""
    return Receipt(plan, recorded=True, written_at=datetime.now(UTC)).document()["plan"]


def _paths(plan: Plan) -> dict[str, str]:
    paths = plan.paths
    return {
        "STATE": paths.state,
        "TLS": paths.tls,
        "CA_CERT": paths.ca_cert,
        "SERVER_CERT": paths.server_cert,
        "SERVER_KEY": paths.server_key,
        "AGENT_CERT": paths.agent_cert,
        "AGENT_KEY": paths.agent_key,
        "TEMPLATES": paths.templates,
        "SERVER_POD": paths.server_pod,
        "CLUSTER_MANIFESTS": paths.cluster_manifests,
        "NAMESPACE_MANIFEST": paths.namespace_manifest,
        "SECRET_MANIFEST": paths.secret_manifest,
        "DAEMONSET_MANIFEST": paths.daemonset_manifest,
        "EGRESS_CONFIG": paths.egress_config,
        "EGRESS_CONFIG_SEEN": paths.egress_config_seen_by_apiserver,
        "SOCKET": paths.socket,
        "KUBECONFIG": paths.kubeconfig,
        "LOOPBACK_KUBECONFIG": plan.paths.loopback_kubeconfig,
        "APISERVER_CONFIG": plan.paths.apiserver_config,
        "RECEIPT": plan.paths.receipt,
    }
