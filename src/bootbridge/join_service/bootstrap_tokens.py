"""Bootstrap tokens: what a kubelet asks for its first certificate with, each good for one node's name.

The name stands among the token's groups: the API server itself then writes it into every certificate request
that the token makes, and whoever approves that needs no right to read Secrets.
"""

from __future__ import annotations

import base64
import secrets
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from bootbridge.join_api.errors import RetryLater
from bootbridge.kube.client import KubeClient
from bootbridge.kube.requests import Json

# What kubeadm gives its own tokens: the right to ask for a kubelet's certificate and to read its documents.
GROUP: Final = "system:bootstrappers:kubeadm:default-node-token"
# Bound to no right at all. Groups have no dots and nodes no colons in their names: one stands for the other.
_NODE_GROUP: Final = "system:bootstrappers:bootbridge:node:"
_USER: Final = "system:bootstrap:"
# Token Secrets are looked for there and nowhere else.
NAMESPACE: Final = "kube-system"
_ALPHABET: Final = string.ascii_lowercase + string.digits
_ATTEMPTS: Final = 3


@dataclass(frozen=True)
class BootstrapToken:
    id: str
    secret: str = field(repr=False)
    expires: int  # seconds since 1970

    def __str__(self) -> str:
        return self.id

    @property
    def text(self) -> str:
        return f"{self.id}.{self.secret}"

    @classmethod
    def fresh(cls, now: float, seconds: int) -> BootstrapToken:
        return cls(_random(6), _random(16), int(now) + seconds)

    def manifest(self, node: str) -> Json:
        values = {
            "token-id": self.id,
            "token-secret": self.secret,
            "description": f"For {node}, by Bootbridge's join service",
            "expiration": datetime.fromtimestamp(self.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": f"{GROUP},{node_group(node)}",
        }
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"bootstrap-token-{self.id}", "namespace": NAMESPACE},
            "type": "bootstrap.kubernetes.io/token",
            "data": {name: base64.b64encode(value.encode()).decode() for name, value in values.items()},
        }


def node_group(node: str) -> str:
    return _NODE_GROUP + node.replace(".", ":")


def node_of(groups: Iterable[str]) -> str:
    """The node that a token's groups name; empty if they name none, or several."""
    named = [each.removeprefix(_NODE_GROUP) for each in groups if each.startswith(_NODE_GROUP)]
    return named[0].replace(":", ".") if len(named) == 1 else ""


def id_of(user: str) -> str:
    """The id of the token that authenticates as this user; empty for everybody else."""
    return user.removeprefix(_USER) if user.startswith(_USER) else ""


async def mint(
    client: KubeClient, node: str, now: float, seconds: int, note: Callable[[str], None] = lambda id: None
) -> BootstrapToken:
    """A token that the API server knows; an id that is taken by chance is drawn again.

    `note` is told the id before the API server is: its answer may be lost, and the token there all the same.
    """
    for _ in range(_ATTEMPTS):
        token = BootstrapToken.fresh(now, seconds)
        note(token.id)
        if await client.create_or_conflict(token.manifest(node)) is not None:
            return token
        note("")  # another join service created it
    raise RetryLater("no free bootstrap token was found")


def _random(characters: int) -> str:
    # One number for all of them: each drawn alone would cost as much as the Secret's encoding.
    number, text = secrets.randbelow(len(_ALPHABET) ** characters), ""
    for _ in range(characters):
        number, digit = divmod(number, len(_ALPHABET))
        text += _ALPHABET[digit]
    return text
