"""Changes the manifests of `up` so that agents authenticate with a service account token."""

from __future__ import annotations

import copy
from typing import Any

from bootbridge.bootstrap.plan.plan import Plan

Json = dict[str, Any]

ACCOUNT = "konnectivity-agent"
AUDIENCE = "system:konnectivity-server"
KUBECONFIG = "/etc/kubernetes/admin.conf"
_TOKENS = "/var/run/secrets/tokens"
# `up` proves the agents' nodes by another token, beside client certificates.
_SERVER_FLAGS = (
    "--cluster-ca-cert=",
    "--agent-identifier-proof=",
    "--agent-namespace=",
    "--agent-service-account=",
    "--agent-proof-kubeconfig=",
    "--node-cidr-mask-size-",
)
_AGENT_FLAGS = ("--agent-cert=", "--agent-key=", "--service-account-token-path=")


def server_pod(pod: Json, plan: Plan) -> Json:
    """Returns a server that reviews each token at the API server and accepts no client certificate."""
    pod = with_kubeconfig(pod)
    container = pod["spec"]["containers"][0]
    container["args"] = [
        *(word for word in container["args"] if not word.startswith(_SERVER_FLAGS)),
        f"--agent-namespace={plan.namespace}",
        f"--agent-service-account={ACCOUNT}",
        f"--authentication-audience={AUDIENCE}",
    ]
    return pod


def with_kubeconfig(pod: Json) -> Json:
    """Returns the server with a kubeconfig."""
    pod = copy.deepcopy(pod)
    container = pod["spec"]["containers"][0]
    container["args"].append(f"--kubeconfig={KUBECONFIG}")
    container["volumeMounts"].append({"name": "kubeconfig", "mountPath": KUBECONFIG, "readOnly": True})
    pod["spec"]["volumes"].append({"name": "kubeconfig", "hostPath": {"path": KUBECONFIG, "type": "File"}})
    return pod


def account(plan: Plan) -> Json:
    metadata = {"name": ACCOUNT, "namespace": plan.namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def daemon_set(found: Json, service_account: str = ACCOUNT) -> Json:
    """Returns agents with a token of `service_account` instead of a certificate."""
    found = copy.deepcopy(found)
    found["metadata"] = {key: found["metadata"][key] for key in ("name", "namespace", "labels")}
    found.pop("status", None)
    spec = found["spec"]["template"]["spec"]
    spec["serviceAccountName"] = service_account
    spec.pop("serviceAccount", None)
    container = spec["containers"][0]
    container["args"] = [
        *(word for word in container["args"] if not word.startswith(_AGENT_FLAGS)),
        f"--service-account-token-path={_TOKENS}/token",
    ]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "token"]
    container["volumeMounts"].append({"name": "token", "mountPath": _TOKENS, "readOnly": True})
    source = {"serviceAccountToken": {"path": "token", "audience": AUDIENCE, "expirationSeconds": 3600}}
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "token"]
    spec["volumes"].append({"name": "token", "projected": {"sources": [source], "defaultMode": 0o440}})
    return found


def impostor(found: Json) -> Json:
    """Returns one more agent per node, with a valid token of another service account."""
    found = daemon_set(found, "default")
    labels = {"app": "impostor"}
    found["metadata"] |= {"name": "impostor", "labels": labels}
    found["spec"]["selector"] = {"matchLabels": labels}
    found["spec"]["template"]["metadata"]["labels"] = labels
    return found
