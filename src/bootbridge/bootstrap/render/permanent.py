"""Renders permanent servers: a static pod for each control plane, and what belongs to it.

The agents come from the chart (`deploy/helm/bootbridge`); its values are rendered too, so that servers and
agents fit together. Nothing rendered here contains a key.
"""

from __future__ import annotations

from typing import Any

from bootbridge.bootstrap.plan import record
from bootbridge.bootstrap.plan.permanent import PermanentPlan
from bootbridge.bootstrap.render import (
    apiserver_manifest,
    egress_selector,
    kubeadm,
    manifests,
    permanent_readme,
)
from bootbridge.bootstrap.render.node_files import KUBEADM_CONFIG, KUBEADM_PATCH
from bootbridge.common.files import Asset, Tree
from bootbridge.common.yaml_text import to_yaml

RBAC = "rbac.yaml"
AGENT_VALUES = "agents-values.yaml"
APISERVER_MANIFEST = "kube-apiserver.yaml"
LEASE_NAMESPACE = "kube-system"
_RBAC_GROUP = "rbac.authorization.k8s.io"

Json = dict[str, Any]


def output_files(
    plan: PermanentPlan, kubeadm_config: Asset | None = None, apiserver_pod: Asset | None = None
) -> Tree:
    """Returns what `bootbridge render --permanent` writes, by relative path.

    With `kubeadm_config` or `apiserver_pod`, a user's files, also these with the tunnel added.
    """
    paths = plan.paths
    tree = {
        paths.plan_record: Asset(record.dump(plan)),
        paths.egress_config: Asset(to_yaml(egress_selector.configuration(plan))),
        paths.permanent_server_pod: Asset(to_yaml(manifests.permanent_server_pod(plan)), 0o600),
        KUBEADM_PATCH: Asset(to_yaml(kubeadm.patch(plan))),
        AGENT_VALUES: Asset(to_yaml(agent_values(plan))),
        permanent_readme.NAME: Asset(permanent_readme.text(plan).encode()),
    }
    if roles := server_roles(plan):
        tree[RBAC] = Asset(b"---\n".join(map(to_yaml, roles)))
    if kubeadm_config:
        merged = kubeadm.merge(kubeadm_config.data, plan, "--kubeadm-config")
        tree[KUBEADM_CONFIG] = Asset(merged, kubeadm_config.mode)
    if apiserver_pod:
        setting = apiserver_manifest.egress_setting(plan)
        added = apiserver_manifest.add(apiserver_pod.data, setting, "--apiserver-manifest")
        tree[APISERVER_MANIFEST] = Asset(added, apiserver_pod.mode)
    return dict(sorted((path.removeprefix("/"), asset) for path, asset in tree.items()))


def purpose(plan: PermanentPlan, path: str) -> str:
    """Returns the purpose of a file of `output_files`."""
    known = {
        plan.paths.plan_record: "the plan, for check",
        plan.paths.egress_config: "routes the kube-apiserver's calls to the socket",
        plan.paths.permanent_server_pod: "the server, a static pod on each control plane",
        f"/{KUBEADM_PATCH}": "patch for your kubeadm configuration",
        f"/{KUBEADM_CONFIG}": "your kubeadm configuration with the tunnel",
        f"/{APISERVER_MANIFEST}": "your kube-apiserver's static pod with the tunnel",
        f"/{RBAC}": "what the servers may do in the API",
        f"/{AGENT_VALUES}": "values of the chart for the agents",
        f"/{permanent_readme.NAME}": "what to run, in which order",
    }
    return known.get(f"/{path}", "")


# --- the servers' permissions


def server_roles(plan: PermanentPlan) -> list[Json]:
    """Returns exactly what a server requests: token reviews, and its leases."""
    found: list[Json] = []
    if plan.reviews_tokens:
        rule = _rule("authentication.k8s.io", "tokenreviews", "create")
        found += _role(plan, f"{plan.server_pod_name}-token-review", rule, namespace="")
    if plan.publishes_leases:
        rule = _rule("coordination.k8s.io", "leases", "create", "get", "list", "update", "delete")
        found += _role(plan, f"{plan.server_pod_name}-leases", rule, namespace=LEASE_NAMESPACE)
    return found


def _rule(group: str, resource: str, *verbs: str) -> Json:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def _role(plan: PermanentPlan, name: str, rule: Json, *, namespace: str) -> list[Json]:
    """Returns a role and its binding; without a namespace, for the whole cluster."""
    scope = "" if namespace else "Cluster"
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    role, binding = f"{scope}Role", f"{scope}RoleBinding"
    subject = {"kind": "User", "name": plan.server_user, "apiGroup": _RBAC_GROUP}
    return [
        {"apiVersion": f"{_RBAC_GROUP}/v1", "kind": role, "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{_RBAC_GROUP}/v1",
            "kind": binding,
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC_GROUP, "kind": role, "name": name},
            "subjects": [subject],
        },
    ]


# --- the agents' values


def agent_values(plan: PermanentPlan) -> Json:
    """Returns values of the chart that fit these servers."""
    values: Json = {
        "image": _image(plan.image.reference),
        "servers": {
            "hosts": list(plan.server_hosts),
            "port": plan.ports.agent,
            "count": "leases" if plan.publishes_leases else "announced",
        },
        "authentication": {"method": str(plan.authentication), "proveNode": plan.prove_nodes},
        "serviceAccount": {"name": plan.agent_service_account},
        "hostNetwork": plan.host_network,
    }
    if plan.reviews_tokens:
        values["authentication"]["token"] = {"audience": plan.token_audience}
        values["servers"]["ca"] = {"secret": permanent_readme.AGENT_SECRET}
    else:
        values["authentication"]["certificate"] = {"secret": permanent_readme.AGENT_SECRET}
    if plan.cluster_networks:
        primary = plan.cluster_networks[0].cidr.version
        prefixes = [each.host_prefix for each in plan.cluster_networks if each.cidr.version == primary]
        values["advertise"] = {"ipFamily": f"ipv{primary}"}
        if not plan.host_network:
            # With several pod networks, the longest prefix, which never includes pods of another node.
            values["advertise"]["podPrefixLength"] = max(prefixes)
    if plan.destinations:
        values["destinations"] = {"allow": list(plan.destinations)}
    return values


def _image(reference: str) -> Json:
    """Returns repository and tag or digest: registry.example:5000/b:1, registry.example/b@sha256:…"""
    repository, _, digest = reference.partition("@")
    host, slash, name = repository.rpartition("/")
    name, _, tag = name.partition(":")
    found = {"repository": f"{host}{slash}{name}", "tag": tag, "digest": digest}
    return {key: value for key, value in found.items() if value}
