"""Everything that the tunnel puts on a bootstrap node before it runs, and what else one may want to read."""

from __future__ import annotations

from bootbridge.bootstrap import firewall
from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.bootstrap.render import egress_selector, kubeadm, manifests
from bootbridge.bootstrap.render.manifests import to_yaml
from bootbridge.bootstrap.render.shell import script
from bootbridge.common.files import Asset, Tree

KUBEADM_PATCH = "kubeadm-cluster-configuration.yaml"
KUBEADM_CONFIG = "kubeadm.yaml"


def node_files(plan: Plan) -> Tree:
    """Absolute paths on the node. No secrets: certificates are made there, by whoever runs."""
    tree = {
        plan.paths.plan_record: Asset(record.dump(plan)),
        plan.paths.egress_config: Asset(to_yaml(egress_selector.configuration(plan))),
        **manifests.templates(plan),
    }
    if plan.flavour is Flavour.OPENSHIFT:
        override = Asset(to_yaml(egress_selector.config_override(plan)), 0o600)
        unit = Asset(_cleanup_unit(plan).encode())
        tree |= {plan.paths.config_override: override, plan.paths.cleanup_unit: unit, **script.scripts(plan)}
    return dict(sorted(tree.items()))


def _cleanup_unit(plan: Plan) -> str:
    """For the person on call: `systemctl start bootbridge-cleanup` once a bootstrap is given up."""
    return f"""\
[Unit]
Description=Take the bootstrap tunnel away after a bootstrap that was given up
# A bootkube.sh that is started again and again would lay the tunnel anew.
Conflicts=bootkube.service
After=bootkube.service

[Service]
Type=oneshot
WorkingDirectory=/opt/openshift
ExecStart={plan.paths.hook_script} cleanup
"""


def output_files(plan: Plan, kubeadm_config: Asset | None = None) -> Tree:
    """What `bootbridge render` writes below its directory: the node's files, and what goes elsewhere.

    A user's own kubeadm configuration comes back with the tunnel in it.
    """
    tree = {path.removeprefix("/"): asset for path, asset in node_files(plan).items()}
    if plan.flavour is Flavour.KUBEADM:
        tree[KUBEADM_PATCH] = Asset(to_yaml(kubeadm.patch(plan)))
    if kubeadm_config:
        merged = kubeadm.merge(kubeadm_config.data, plan, "--kubeadm-config")
        tree[KUBEADM_CONFIG] = Asset(merged, kubeadm_config.mode)
    return dict(sorted((tree | dict(firewall.render_files(plan))).items()))


def purpose(plan: Plan, path: str) -> str:
    """What a file of `output_files` is for, in a few words."""
    paths = plan.paths
    known = {
        paths.plan_record: "the plan: what down, check and doctor go by",
        paths.egress_config: "sends the kube-apiserver's calls to the socket",
        paths.config_override: "makes the kube-apiserver read the egress selector",
        plan.paths.cleanup_unit: "takes the tunnel away after a bootstrap that was given up",
        plan.paths.hook_script: "called by bootkube.sh: certificates, manifests, cleanup",
        f"{paths.templates}/namespace.yaml": "the agents' namespace",
        f"{paths.templates}/agent-secret.yaml": "the agents' certificate, filled in on the node",
        f"{paths.templates}/agent-daemonset.yaml": "an agent on each node",
        f"{paths.templates}/server-pod.yaml": "the server, a static pod on the bootstrap node",
        f"/{KUBEADM_PATCH}": "to be merged into your kubeadm configuration",
        f"/{KUBEADM_CONFIG}": "your kubeadm configuration with the tunnel in it",
    }
    return known.get(f"/{path}", "lets nodes reach the bootstrap node" if "firewall" in path else "")
