"""A node's name belongs to the key that used it first, and a token to the node that used it first.

Each bond is a ConfigMap of its own. Creating one is atomic: whoever is answered 409 reads who was first.
There is no way to overwrite a bond, and this service has no right to; an operator frees it by deleting it.
Only a ticket makes a bond for a newcomer: whoever says that it is a node already is looked up.
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

NODE_PREFIX: Final = "bootbridge-node-"
TOKEN_PREFIX: Final = "bootbridge-token-"
LABELS: Final = {"app.kubernetes.io/managed-by": "bootbridge", "app.kubernetes.io/component": "join-service"}
_NAME_CHARACTERS_MAX: Final = 253


class NameBindings:
    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def bind(self, grant: Grant, token: str = "") -> None:
        """Take the name, and the evidence's token if it is one, or be refused; again by the same is fine."""
        if token:
            await self._bind_token(token, grant.name)
        bond = self._bond(node_binding_name(grant.name), "identity", grant.holder)
        self._require_holder(grant, await self._first(bond, "identity"))

    async def recognise(self, grant: Grant, token: str = "") -> None:
        """Whether this is the node that has the name; refused where there is none.

        A node without a bond is bound now: an operator has freed it, or it is the first, which had no ticket.
        """
        bond = await self._client.get_or_none(Ref(CONFIG_MAP, node_binding_name(grant.name), self._namespace))
        if bond is not None:
            self._require_holder(grant, _value(bond, "identity"))
        elif await self._client.get_or_none(Ref(NODE, grant.name)) is not None:
            await self.bind(grant, token)
        else:
            raise JoinRefused(f"{grant.name} is not a node of this cluster: it has to ask for a ticket")

    async def _bind_token(self, token: str, name: str) -> None:
        bond = self._bond(token_binding_name(token), "node", name)
        first = await self._first(bond, "node")
        if first != name:
            raise JoinRefused(f"the token {token!r} is used up: {first} joined with it")

    async def _first(self, bond: Json, field: str) -> str:
        """What the bond says, having made it unless somebody else has."""
        if await self._client.create_or_conflict(bond) is not None:
            return str(bond["data"][field])
        ref = Ref(CONFIG_MAP, bond["metadata"]["name"], self._namespace)
        found = await self._client.get_or_none(ref)
        if found is None:
            raise RetryLater(f"{ref} was freed just now")
        return _value(found, field)

    def _require_holder(self, grant: Grant, first: str) -> None:
        if first != grant.holder:
            freed_by = f"kubectl -n {self._namespace} delete configmap {node_binding_name(grant.name)}"
            raise JoinRefused(
                f"the node name {grant.name} is bound to {first}, and this caller is {grant.holder}; "
                f"if the instance was replaced: {freed_by}"
            )

    def _bond(self, name: str, field: str, value: str) -> Json:
        metadata = {"name": name, "namespace": self._namespace, "labels": LABELS}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {field: value},
            "immutable": True,
        }


def _value(bond: Json, field: str) -> str:
    return str((bond.get("data") or {}).get(field, ""))


def node_binding_name(name: str) -> str:
    """The ConfigMap's name; a node's name that is too long beside the prefix is told by its digest."""
    whole = NODE_PREFIX + name
    if len(whole) <= _NAME_CHARACTERS_MAX:
        return whole
    return f"{NODE_PREFIX}{hashlib.sha256(name.encode()).hexdigest()}"


def token_binding_name(token: str) -> str:
    """By digest: a token's id is free text."""
    return f"{TOKEN_PREFIX}{hashlib.sha256(token.encode()).hexdigest()[:40]}"
