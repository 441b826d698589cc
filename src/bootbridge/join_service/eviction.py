"""Removes a node from the cluster for good: `bootbridge node evict`.

Each step is idempotent, and the order leaves no way back in: first the name binding is replaced by one that
no identity has, so that every join service refuses tickets and rejoins of the name; then an admission policy
refuses each write of the node's user, so that its kubelet can neither register again nor renew its
certificate; then its bootstrap tokens, its pending certificate requests, the Node and its pods are removed.
The join services see the new binding and close the connections of the identity that had the name; the
server of a tunnel sees that the agent's pod is gone and disconnects the agent.

Kubernetes has no revocation: a certificate that the node holds stays valid until it expires. It still permits
to read what every node may read, such as Services; Secrets only of pods on this Node, which is deleted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Final

from bootbridge.errors import OperatorError
from bootbridge.join_service import bootstrap_tokens
from bootbridge.join_service.control_plane_lease import CONTROL_PLANE_LABEL
from bootbridge.join_service.csr_approver import REASON, pending, with_condition
from bootbridge.join_service.name_bindings import (
    LABELS,
    STATE_NAMESPACE,
    evicted_binding,
    is_evicted,
    node_binding_name,
)
from bootbridge.kube.errors import KubeError
from bootbridge.kube.kinds import (
    CERTIFICATE_REQUEST,
    CONFIG_MAP,
    NODE,
    POD,
    SECRET,
    VALIDATING_POLICY,
    VALIDATING_POLICY_BINDING,
)
from bootbridge.kube.objects import ObjectClient, Ref, apply_object, delete_object, list_objects
from bootbridge.kube.requests import Json

_NODE_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_POLICY_PREFIX: Final = "bootbridge-evicted-"
_USER: Final = "system:node:"
_ATTEMPTS: Final = 5
CERTIFICATE_AUTHORITIES: Final = (
    "the node was a control plane: it holds the cluster's CA keys and may be a member of etcd "
    "(remove it with `etcdctl member remove`, and rotate the cluster's certificate authorities)"
)
NO_POLICY: Final = (
    "the API server has no ValidatingAdmissionPolicy (Kubernetes 1.30 or newer): the node's kubelet can "
    "register and renew its certificate until the certificate expires"
)


@dataclass(frozen=True)
class EvictionStep:
    resource: str
    name: str
    result: str  # created, deleted, denied, unchanged; of a dry run: would be created, …


@dataclass
class Eviction:
    """`remaining` is what an operator has to do."""

    node: str
    dry_run: bool
    steps: list[EvictionStep] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            "version": 1,
            "node": self.node,
            "dryRun": self.dry_run,
            "steps": [{"resource": s.resource, "name": s.name, "result": s.result} for s in self.steps],
            "remaining": self.remaining,
        }

    def add(self, ref: Ref, result: str) -> None:
        shown = f"would be {result}" if self.dry_run and result != "unchanged" else result
        self.steps.append(EvictionStep(ref.kind.name, ref.name, shown))


class Evictor:
    """Evicts nodes, and undoes it. Raises KubeError and KubeUnreachable; run it again after them."""

    def __init__(self, client: ObjectClient, *, dry_run: bool = False) -> None:
        self._client = client
        self._dry_run = dry_run

    async def evict(self, node: str) -> Eviction:
        eviction = Eviction(_checked(node), self._dry_run)
        await self._mark_binding(eviction)
        await self._refuse_writes(eviction)
        await self._delete_tokens(eviction)
        await self._deny_requests(eviction)
        await self._delete_node(eviction)
        await self._delete_pods(eviction)
        return eviction

    async def release(self, node: str) -> Eviction:
        """Permits the name again, for an identity that the policy accepts."""
        eviction = Eviction(_checked(node), self._dry_run)
        ref = self._binding(node)
        found = await self._client.get_or_none(ref)
        if found is not None and is_evicted(found):
            await self._delete(eviction, ref, found)
        else:
            eviction.add(ref, "unchanged")
        for ref in _policy_refs(node)[::-1]:
            found = await self._client.get_or_none(ref)
            if found is not None:
                await self._delete(eviction, ref, found)
            else:
                eviction.add(ref, "unchanged")
        return eviction

    # --- steps

    async def _mark_binding(self, eviction: Eviction) -> None:
        """A binding is immutable: it is deleted and created; a ticket in between makes that a conflict."""
        ref = self._binding(eviction.node)
        for _ in range(_ATTEMPTS):
            found = await self._client.get_or_none(ref)
            if found is not None and is_evicted(found):
                return eviction.add(ref, "unchanged")
            if self._dry_run:
                return eviction.add(ref, "replaced" if found else "created")
            if found is not None:
                await self._client.delete_if_found(ref, uid=found["metadata"]["uid"])
            if await self._client.create_or_conflict(evicted_binding(ref, found)) is not None:
                return eviction.add(ref, "replaced" if found else "created")
        raise OperatorError(
            f"write conflict after {_ATTEMPTS} attempts", subject=str(ref), hint="run the same command again"
        )

    async def _refuse_writes(self, eviction: Eviction) -> None:
        for ref, manifest in zip(_policy_refs(eviction.node), _policy(eviction.node), strict=True):
            try:
                if await self._client.get_or_none(ref) is not None:
                    eviction.add(ref, "unchanged")
                    continue
                await self._client.send(apply_object(manifest, dry_run=self._dry_run))
            except KubeError as error:
                if not error.is_not_found:
                    raise
                eviction.remaining.append(NO_POLICY)
                return
            eviction.add(ref, "created")

    async def _delete_tokens(self, eviction: Eviction) -> None:
        fields = "type=bootstrap.kubernetes.io/token"
        request = list_objects(SECRET, bootstrap_tokens.NAMESPACE, fields=fields)
        group = bootstrap_tokens.node_group(eviction.node)
        for found in (await self._client.send(request)).body["items"]:
            if group in _groups(found):
                ref = Ref(SECRET, found["metadata"]["name"], bootstrap_tokens.NAMESPACE)
                await self._delete(eviction, ref, found)

    async def _deny_requests(self, eviction: Eviction) -> None:
        """Requests without a decision; a request of the node's own user would be approved by Kubernetes."""
        for found in (await self._client.send(list_objects(CERTIFICATE_REQUEST))).body["items"]:
            spec = found.get("spec") or {}
            token_node = bootstrap_tokens.node_from_groups(spec.get("groups") or [])
            if eviction.node not in (token_node, str(spec.get("username", "")).removeprefix(_USER)):
                continue
            if not pending(found):
                continue
            ref = Ref(CERTIFICATE_REQUEST, found["metadata"]["name"])
            if not self._dry_run:
                message = f"{eviction.node} was evicted"
                denied = {"type": "Denied", "status": "True", "reason": REASON, "message": message}
                await self._client.send(with_condition(found, denied))
            eviction.add(ref, "denied")

    async def _delete_node(self, eviction: Eviction) -> None:
        ref = Ref(NODE, eviction.node)
        found = await self._client.get_or_none(ref)
        if found is None:
            return eviction.add(ref, "unchanged")
        if CONTROL_PLANE_LABEL in (found["metadata"].get("labels") or {}):
            eviction.remaining.append(CERTIFICATE_AUTHORITIES)
        return await self._delete(eviction, ref, found)

    async def _delete_pods(self, eviction: Eviction) -> None:
        """Without a grace period: the kubelet can confirm nothing, and pods' tokens are valid until then.

        After the Node, because DaemonSets create no pods for a node that does not exist.
        """
        request = list_objects(POD, fields=f"spec.nodeName={eviction.node}")
        for found in (await self._client.send(request)).body["items"]:
            metadata = found["metadata"]
            await self._delete(eviction, Ref(POD, metadata["name"], metadata["namespace"]), found, now=True)

    # --- helpers

    def _binding(self, node: str) -> Ref:
        return Ref(CONFIG_MAP, node_binding_name(node), STATE_NAMESPACE)

    async def _delete(self, eviction: Eviction, ref: Ref, found: Json, *, now: bool = False) -> None:
        if not self._dry_run:
            try:
                await self._client.send(delete_object(ref, uid=found["metadata"]["uid"], now=now))
            except KubeError as error:
                if not error.is_not_found:
                    raise
        eviction.add(ref, "deleted")


def _checked(node: str) -> str:
    if not _NODE_NAME.fullmatch(node):
        raise OperatorError(f"invalid node name {node!r}", subject="NAME", hint="use the name of the Node")
    return node


def _policy_name(node: str) -> str:
    whole = _POLICY_PREFIX + node
    return whole if len(whole) <= 253 else _POLICY_PREFIX + hashlib.sha256(node.encode()).hexdigest()


def _policy_refs(node: str) -> tuple[Ref, Ref]:
    name = _policy_name(node)
    return Ref(VALIDATING_POLICY, name), Ref(VALIDATING_POLICY_BINDING, name)


def _policy(node: str) -> tuple[Json, Json]:
    """Refuses every write of the node's user. The name is in the policy itself: it needs no parameters."""
    name = _policy_name(node)
    every = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": VALIDATING_POLICY.name,
        "metadata": {"name": name, "labels": LABELS},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [every]},
            "matchConditions": [
                {"name": "evicted-node", "expression": f"request.userInfo.username == '{_USER}{node}'"}
            ],
            "validations": [{"expression": "false", "message": f"node {node} was evicted"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": VALIDATING_POLICY_BINDING.name,
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return policy, binding


def _groups(secret: Json) -> list[str]:
    try:
        text = base64.b64decode((secret.get("data") or {}).get("auth-extra-groups", ""), validate=True)
    except (binascii.Error, ValueError):
        return []
    return text.decode("utf-8", "replace").split(",")
