"""Name bindings: a node name belongs to the first key that used it, an evidence token to its first node.

Each binding is an immutable ConfigMap. Creating one is atomic: after a 409 the service reads the existing
one. The service has no permission to change a binding; an operator releases it by deleting the ConfigMap.
A new instance is bound by a ticket only; a rejoin requires an existing node.
"""

from __future__ import annotations

import hashlib
from typing import Final

from bootbridge.join_api.errors import JoinRefused, RetryLater
from bootbridge.join_service.authorization import Grant
from bootbridge.kube.client import KubeClient
from bootbridge.kube.kinds import CONFIG_MAP, NODE
from bootbridge.kube.objects import Ref
from bootbridge.kube.requests import Json
from bootbridge.trust.identity import without_kind

# Its own namespace, with the name bindings and the Lease: there the service may create and read by any name.
STATE_NAMESPACE: Final = "bootbridge-join"
NODE_PREFIX: Final = "bootbridge-node-"
TOKEN_PREFIX: Final = "bootbridge-token-"
LABELS: Final = {"app.kubernetes.io/managed-by": "bootbridge", "app.kubernetes.io/component": "join-service"}
# The identity in the binding of an evicted node: no caller has it.
EVICTED: Final = "evicted"
# The label of such a binding, and the field with the identity that had the name before.
EVICTED_LABEL: Final = "bootbridge-evicted"
PREVIOUS_IDENTITY: Final = "previousIdentity"
_NAME_CHARACTERS_MAX: Final = 253


class NameBindings:
    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def bind(self, grant: Grant, token: str = "") -> None:
        """Binds the name, and the evidence token if there is one; idempotent. Raises JoinRefused."""
        if token:
            await self._bind_token(token, grant.name)
        binding = self._manifest(node_binding_name(grant.name), "identity", grant.identity)
        self._require_identity(grant, await self._create_or_read(binding, "identity"))

    async def require_node(self, grant: Grant, token: str = "") -> None:
        """Raises JoinRefused unless a Node with this name exists and is bound to this identity.

        A Node without a binding is bound now: an operator released it, or it is the first node.
        """
        ref = Ref(CONFIG_MAP, node_binding_name(grant.name), self._namespace)
        if (binding := await self._client.get_or_none(ref)) is not None:
            self._require_identity(grant, _value(binding, "identity"))
        elif await self._client.get_or_none(Ref(NODE, grant.name)) is not None:
            await self.bind(grant, token)
        else:
            raise JoinRefused(f"{grant.name}: not a node of this cluster (request a join ticket)")

    async def _bind_token(self, token: str, name: str) -> None:
        binding = self._manifest(token_binding_name(token), "node", name)
        bound = await self._create_or_read(binding, "node")
        if bound != name:
            raise JoinRefused(f"token {token!r} already used by {bound}")

    async def _create_or_read(self, binding: Json, field: str) -> str:
        """Returns the field of the new binding, or of the existing one."""
        if await self._client.create_or_conflict(binding) is not None:
            return str(binding["data"][field])
        ref = Ref(CONFIG_MAP, binding["metadata"]["name"], self._namespace)
        found = await self._client.get_or_none(ref)
        if found is None:
            raise RetryLater(f"{ref} was deleted just now")
        return _value(found, field)

    def _require_identity(self, grant: Grant, bound: str) -> None:
        if bound == EVICTED:
            raise JoinRefused(
                f"{grant.name}: node evicted (to permit it again: bootbridge node evict --undo {grant.name})"
            )
        if bound != grant.identity:
            command = f"kubectl -n {self._namespace} delete configmap {node_binding_name(grant.name)}"
            if without_kind(bound):
                raise JoinRefused(
                    f"{grant.name}: node name bound to {bound}, by an earlier version without a kind; "
                    f"the caller is {grant.identity} (to bind it again: {command})"
                )
            raise JoinRefused(
                f"{grant.name}: node name bound to {bound}, but the caller is {grant.identity} "
                f"(if the instance was replaced: {command})"
            )

    def _manifest(self, name: str, field: str, value: str) -> Json:
        metadata = {"name": name, "namespace": self._namespace, "labels": LABELS}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {field: value},
            "immutable": True,
        }


def evicted_binding(ref: Ref, previous: Json | None) -> Json:
    """Returns the binding of an evicted node; ``previous`` is the one that it replaces."""
    identity = _value(previous, "identity") if previous is not None else ""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": ref.name,
            "namespace": ref.namespace,
            "labels": {**LABELS, EVICTED_LABEL: "true"},
        },
        "data": {"identity": EVICTED, **({PREVIOUS_IDENTITY: identity} if identity else {})},
        "immutable": True,
    }


def previous_identity(binding: Json) -> str:
    """Returns the identity that had the name of an evicted node; empty if none had it."""
    return _value(binding, PREVIOUS_IDENTITY)


def is_evicted(binding: Json) -> bool:
    return _value(binding, "identity") == EVICTED


def _value(binding: Json, field: str) -> str:
    return str((binding.get("data") or {}).get(field, ""))


def node_binding_name(name: str) -> str:
    """Returns the ConfigMap's name; a node name too long for it is replaced by its digest."""
    whole = NODE_PREFIX + name
    if len(whole) <= _NAME_CHARACTERS_MAX:
        return whole
    return f"{NODE_PREFIX}{hashlib.sha256(name.encode()).hexdigest()}"


def token_binding_name(token: str) -> str:
    """By digest, as a token's id is free text."""
    return f"{TOKEN_PREFIX}{hashlib.sha256(token.encode()).hexdigest()[:40]}"
