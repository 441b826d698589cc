"""Bootstrap tokens for a kubelet's first certificate, each valid for one node name.

The name is one of the token's groups: the API server then writes it into every CSR made with the token, so
that the approver needs no permission to read Secrets.
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

# kubeadm's group for its own tokens: may create CSRs and read kubeadm's ConfigMaps.
GROUP: Final = "system:bootstrappers:kubeadm:default-node-token"
# Has no permissions. Group names must not contain dots and node names no colons, so one replaces the other.
_NODE_GROUP: Final = "system:bootstrappers:bootbridge:node:"
_USER: Final = "system:bootstrap:"
# The API server reads bootstrap token Secrets from this namespace only.
NAMESPACE: Final = "kube-system"
_ALPHABET: Final = string.ascii_lowercase + string.digits
_ATTEMPTS: Final = 3


@dataclass(frozen=True)
class BootstrapToken:
    id: str
    secret: str = field(repr=False)
    expires: int  # Unix time

    def __str__(self) -> str:
        return self.id

    @property
    def text(self) -> str:
        return f"{self.id}.{self.secret}"

    @classmethod
    def generate(cls, now: float, seconds: int) -> BootstrapToken:
        return cls(_random(6), _random(16), int(now) + seconds)

    def manifest(self, node: str) -> Json:
        values = {
            "token-id": self.id,
            "token-secret": self.secret,
            "description": f"Bootbridge join ticket of {node}",
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


def node_from_groups(groups: Iterable[str]) -> str:
    """Returns the node name in a token's groups; empty if there is none or more than one."""
    named = [each.removeprefix(_NODE_GROUP) for each in groups if each.startswith(_NODE_GROUP)]
    return named[0].replace(":", ".") if len(named) == 1 else ""


def token_id_from_user(user: str) -> str:
    """Returns the id of the token that authenticates as this user; empty for other users."""
    return user.removeprefix(_USER) if user.startswith(_USER) else ""


async def create(
    client: KubeClient,
    node: str,
    now: float,
    seconds: int,
    on_token_id: Callable[[str], None] = lambda token_id: None,
) -> BootstrapToken:
    """Creates the token's Secret; a colliding id is generated again.

    `on_token_id` is called before the request: the token may exist although the response was lost.
    """
    for _ in range(_ATTEMPTS):
        token = BootstrapToken.generate(now, seconds)
        on_token_id(token.id)
        if await client.create_or_conflict(token.manifest(node)) is not None:
            return token
        on_token_id("")  # an existing token has this id
    raise RetryLater(f"no free bootstrap token id in {_ATTEMPTS} attempts")


def _random(characters: int) -> str:
    # One random number for all characters: one for each would cost as much as the Secret's encoding.
    number, text = secrets.randbelow(len(_ALPHABET) ** characters), ""
    for _ in range(characters):
        number, digit = divmod(number, len(_ALPHABET))
        text += _ALPHABET[digit]
    return text
