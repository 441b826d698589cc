"""Renders the README of permanent servers: what to run, in which order."""

from __future__ import annotations

from bootbridge.bootstrap.plan.permanent import PermanentPlan
from bootbridge.bootstrap.render import kubeadm

NAME = "README.md"
AGENT_SECRET = "bootbridge-agent"


def text(plan: PermanentPlan) -> str:
    """Returns the document. The kube-apiserver is last, so that its calls find agents from the start."""
    steps = [
        _certificates(plan),
        _kubeconfig(plan),
        _roles(plan),
        _servers(plan),
        _agents(plan),
        _apiserver(plan),
    ]
    numbered = (f"## {number}. {step}" for number, step in enumerate(filter(None, steps), 1))
    return "\n".join([_head(plan), *numbered, _later(plan)])


def _head(plan: PermanentPlan) -> str:
    return f"""\
# Permanent servers

A proxy-server beside the kube-apiserver of each control plane, and agents that dial
{", ".join(plan.server_hosts)}, port {plan.ports.agent}.

Written by `bootbridge render --permanent`: a second render keeps what you change here, and `bootbridge check`
checks it. If a tunnel of `bootbridge up` is on a node, run `bootbridge down` there first.
"""


def _certificates(plan: PermanentPlan) -> str:
    names = " ".join(f"--server-name {host}" for host in plan.server_hosts)
    return f"""\
Certificates

On your machine:

    bootbridge certs create --dir certs {names}

Copy ca.crt, server.crt and server.key to `{plan.paths.tls}` of each control plane,
the key with mode 0600. `certs/ca.key` stays on your machine.
"""


def _kubeconfig(plan: PermanentPlan) -> str:
    if not plan.needs_kubeconfig:
        return ""
    uses = [
        *(["reviews agents' tokens"] if plan.reviews_tokens else []),
        *(["publishes its lease"] if plan.publishes_leases else []),
        *(["asks for the pods by which agents prove their node"] if plan.prove_nodes else []),
    ]
    path = plan.paths.server_kubeconfig
    return f"""\
Access to the API

With `{path}` the server {", and ".join(uses)}.

On each control plane (kubeadm.yaml: your ClusterConfiguration):

    (umask 077; kubeadm kubeconfig user --config kubeadm.yaml --client-name {plan.server_user} \\
        > {path})

Its certificate is valid for a year (`--validity-period`). Restart the server after a renewal.
"""


def _roles(plan: PermanentPlan) -> str:
    granted = [
        *(["create TokenReviews"] if plan.reviews_tokens else []),
        *(["use leases in kube-system"] if plan.publishes_leases else []),
    ]
    if not granted:
        return ""
    return f"""\
Permissions of the servers

The user {plan.server_user} may {" and ".join(granted)}, and nothing else:

    kubectl apply -f rbac.yaml
"""


def _servers(plan: PermanentPlan) -> str:
    return f"""\
Servers

Copy these to each control plane, the manifest last: the kubelet starts the server then.

    {plan.paths.egress_config}
    {plan.paths.permanent_server_pod}

On the control plane:

    curl http://127.0.0.1:{plan.ports.server_health}/healthz
"""


def _agents(plan: PermanentPlan) -> str:
    inside = f"-n {plan.agent_namespace}"
    secret = f"kubectl {inside} create secret generic {AGENT_SECRET} --from-file=ca.crt=certs/ca.crt"
    if not plan.reviews_tokens:
        secret += " \\\n        --from-file=tls.crt=certs/agent.crt --from-file=tls.key=certs/agent.key"
    return f"""\
Agents

CHART is deploy/helm/bootbridge of the sources, or the archive of a release:

    kubectl create namespace {plan.agent_namespace}
    {secret}
    helm install bootbridge CHART {inside} -f agents-values.yaml
    kubectl {inside} rollout status daemonset/bootbridge-agent

Agents are ready when they are connected. On each control plane this returns ok then:

    curl http://127.0.0.1:{plan.ports.server_health}/readyz
"""


def _apiserver(plan: PermanentPlan) -> str:
    flags = [f"--{flag}={value}" for flag, value in kubeadm.extra_args(plan).items()]
    mounts = [f"{volume['hostPath']} (read-only)" for volume in kubeadm.extra_volumes(plan)]
    listed = "\n".join(f"    {each}" for each in [*flags, *mounts])
    return f"""\
kube-apiserver

It needs these flags and directories:

{listed}

With kubeadm, let `bootbridge render --permanent --kubeadm-config FILE` add them to your ClusterConfiguration
(or merge kubeadm-cluster-configuration.yaml), then, one control plane after the other:

    kubeadm init phase upload-config kubeadm --config kubeadm.yaml        # only once
    kubeadm init phase control-plane apiserver --config kubeadm.yaml

Other static pods: `bootbridge render --permanent --apiserver-manifest FILE` adds them to a copy of the
manifest, kube-apiserver.yaml; put it in the place of the original.
"""


def _later(plan: PermanentPlan) -> str:
    return f"""\
## Test and removal

    bootbridge top http://127.0.0.1:{plan.ports.server_admin}        # on a control plane
    kubectl logs -n {plan.agent_namespace} daemonset/bootbridge-agent

To remove the tunnel, go backwards: first the flags of the kube-apiserver, then
`helm uninstall bootbridge -n {plan.agent_namespace}`, then on each control plane
`{plan.paths.permanent_server_pod}` and `{plan.paths.state}`, then the roles.
"""
