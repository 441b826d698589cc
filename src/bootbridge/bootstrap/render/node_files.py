"""Lists the tunnel's files on a bootstrap node, and the files that `render` writes beside them."""

from __future__ import annotations

from pathlib import PurePosixPath

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
    """Returns the files by absolute path. They contain no keys: the node issues the certificates."""
    tree = {
        plan.paths.plan_record: Asset(record.dump(plan)),
        plan.paths.egress_config: Asset(to_yaml(egress_selector.configuration(plan))),
        **manifests.templates(plan),
    }
    if plan.flavour is Flavour.OPENSHIFT:
        override = Asset(to_yaml(egress_selector.config_override(plan)), 0o600)
        units = {
            plan.paths.cleanup_unit: Asset(_cleanup_unit(plan).encode()),
            plan.paths.cleanup_retry_unit: Asset(_cleanup_retry_unit(plan).encode()),
        }
        tree |= {plan.paths.config_override: override, **units, **script.scripts(plan)}
    return dict(sorted(tree.items()))


def _cleanup_unit(plan: Plan) -> str:
    """Returns the unit that an operator starts after an abandoned bootstrap."""
    return f"""\
[Unit]
Description=Remove the bootstrap tunnel after an abandoned bootstrap
# A restarted bootkube.sh would install the tunnel again.
Conflicts=bootkube.service {_name(plan.paths.cleanup_retry_unit)}
After=bootkube.service {_name(plan.paths.cleanup_retry_unit)}

[Service]
Type=oneshot
WorkingDirectory=/opt/openshift
ExecStart={plan.paths.hook_script} cleanup --abandoned
"""


def _cleanup_retry_unit(plan: Plan) -> str:
    """Returns the unit that the clean-up enables and starts if something is left. It disables itself.

    It is not a oneshot: after a reboot the node would not finish booting before its end.
    """
    return f"""\
[Unit]
Description=Remove what is left of the bootstrap tunnel
# The network is stopped after this unit, so that a last attempt is possible when the node shuts down.
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
WorkingDirectory=/opt/openshift
ExecStart={plan.paths.hook_script} cleanup-retry
TimeoutStopSec={script.RETRY_STOP_SECONDS}

[Install]
WantedBy=multi-user.target
"""


def _name(path: str) -> str:
    return PurePosixPath(path).name


def output_files(plan: Plan, kubeadm_config: Asset | None = None) -> Tree:
    """Returns what `bootbridge render` writes: the node's files, the firewall's, and for kubeadm a patch.

    With `kubeadm_config`, a user's configuration, also that file with the tunnel added.
    """
    tree = {path.removeprefix("/"): asset for path, asset in node_files(plan).items()}
    if plan.flavour is Flavour.KUBEADM:
        tree[KUBEADM_PATCH] = Asset(to_yaml(kubeadm.patch(plan)))
    if kubeadm_config:
        merged = kubeadm.merge(kubeadm_config.data, plan, "--kubeadm-config")
        tree[KUBEADM_CONFIG] = Asset(merged, kubeadm_config.mode)
    return dict(sorted((tree | dict(firewall.render_files(plan))).items()))


def purpose(plan: Plan, path: str) -> str:
    """Returns the purpose of a file of `output_files`."""
    paths = plan.paths
    known = {
        paths.plan_record: "the plan, for down, check and doctor",
        paths.egress_config: "routes the kube-apiserver's calls to the socket",
        paths.config_override: "adds the egress selector to the kube-apiserver",
        plan.paths.cleanup_unit: "removes the tunnel after an abandoned bootstrap",
        plan.paths.cleanup_retry_unit: "removes what the clean-up at the end of the bootstrap left",
        plan.paths.hook_script: "called by bootkube.sh: certificates, manifests, cleanup",
        f"{paths.templates}/namespace.yaml": "the agents' namespace",
        f"{paths.templates}/agent-secret.yaml": "the agents' certificate, filled in on the node",
        f"{paths.templates}/agent-role.yaml": "what agents' tokens may read, to prove their node",
        f"{paths.templates}/agent-role-binding.yaml": "gives the agents that permission",
        f"{paths.templates}/agent-daemonset.yaml": "an agent on each node",
        f"{paths.templates}/server-pod.yaml": "the server, a static pod on the bootstrap node",
        f"/{KUBEADM_PATCH}": "patch for your kubeadm configuration",
        f"/{KUBEADM_CONFIG}": "your kubeadm configuration with the tunnel",
    }
    return known.get(f"/{path}") or _firewall_purpose(path)


def _firewall_purpose(path: str) -> str:
    if not path.startswith("firewall/"):
        return ""
    if path.startswith("firewall/remove."):
        return "closes the agents' port again, after the bootstrap"
    return "opens the agents' port on the bootstrap node to the nodes"
