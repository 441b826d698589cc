"""Approves a kubelet's first certificate: a ticket's token is good for the ticket's node, and for no other.

kubeadm lets the controller manager approve whatever node's name a bootstrap token asks for, so that one
compromised worker could become any other node. `deploy` takes that away, and this takes its place.

Only requests that bootstrap tokens make are judged. A node that renews its own certificate, and everybody
else, is left to whoever approved them before. Several replicas may judge the same request: they agree, and
the API server takes the first.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.kubelet_certificate import KubeletCsr
from bootbridge.join_service import audit as outcomes
from bootbridge.join_service import bootstrap_tokens
from bootbridge.join_service.audit import AuditLog
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import CERTIFICATE_REQUEST, CLUSTER_ROLE_BINDING
from bootbridge.kube.list_watch import ListWatch
from bootbridge.kube.objects import Ref, get_object
from bootbridge.kube.reflector import Reflector, WatchedResource
from bootbridge.kube.requests import ApiRequest, Json
from bootbridge.runtime import logs
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.runtime.tasks import spawn

SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
# kubeadm's: whatever name a bootstrap token asks for is approved.
AUTO_APPROVE_BINDING: Final = Ref(CLUSTER_ROLE_BINDING, "kubeadm:node-autoapprove-bootstrap")
REASON: Final = "BootbridgeTicket"
# Further requests wait where the list and the watch have put them; the API server bounds how many there are.
DECISIONS_IN_PROGRESS_MAX: Final = 8
_USAGES: Final = frozenset({"digital signature", "key encipherment", "client auth"})
_PEM: Final = re.compile(
    rb"-----BEGIN CERTIFICATE REQUEST-----\n([A-Za-z0-9+/=\n]+)-----END CERTIFICATE REQUEST-----\n?"
)
_OURS: Final = f"spec.signerName={SIGNER}"
_APPROVED: Final = "Approved"
# The API server will never take it: asking again would be answered the same.
_INVALID: Final = (400, 422)


@dataclass(frozen=True)
class CsrDecision:
    """On one certificate request of a bootstrap token."""

    token: str  # its id
    node: str  # whom the token is for; empty: for nobody
    objection: str = ""  # empty: approved

    @property
    def outcome(self) -> str:
        return outcomes.DENIED if self.objection else outcomes.APPROVED

    def condition(self, replica: str) -> Json:
        text = self.objection or f"the token's ticket is {self.node}'s"
        return {
            "type": "Denied" if self.objection else _APPROVED,
            "status": "True",
            "reason": REASON,
            "message": f"{text}; judged by the join service on {replica}",
        }


def decide_csr(found: Json) -> CsrDecision | None:
    """None: it is not of a bootstrap token, or not for a kubelet's client certificate."""
    spec, token = found.get("spec") or {}, _token(found)
    if not token or spec.get("signerName") != SIGNER:
        return None
    # User and groups are the API server's words, not the caller's: it wrote down whom it had authenticated.
    node = bootstrap_tokens.node_of(spec.get("groups") or [])
    try:
        _must_be_for(node, spec)
    except JoinRefused as refusal:
        return CsrDecision(token, node, str(refusal))
    return CsrDecision(token, node)


def _must_be_for(node: str, spec: Json) -> None:
    if not node:
        raise JoinRefused("the token is of no ticket")
    request = KubeletCsr(_der(spec))
    request.require_subject(node, ())
    request.require_no_attributes()
    if others := set(spec.get("usages") or []) - _USAGES:
        raise JoinRefused(f"the certificate would be for {min(others)}, too")


def _der(spec: Json) -> bytes:
    """Of the one form that every reader of PEM reads alike: the signer is another program than this one."""
    try:
        pem = _PEM.fullmatch(base64.b64decode(spec.get("request") or "", validate=True))
        return base64.b64decode(pem[1].replace(b"\n", b""), validate=True) if pem else b""
    except (binascii.Error, ValueError):
        return b""


class CsrApprover:
    """`run` once, until cancelled. `replica` says in each verdict which of several join services it is of."""

    def __init__(self, client: KubeClient, audit: AuditLog, replica: str) -> None:
        self._client = client
        self._audit = audit
        self._replica = replica
        self._warned = False
        # Not yet looked at: whatever has been is taken out.
        self._state = ListWatch(random.Random())
        self._judging: dict[str, asyncio.Task[None]] = {}
        resource = WatchedResource(CERTIFICATE_REQUEST, fields=_OURS)
        self._reflector = Reflector(client, resource, self._state, self._begin)

    async def run(self) -> None:
        try:
            await self._look_for_another()
            await self._reflector.run()
        finally:
            self._state.objects.clear()  # so that no end of one is the beginning of another
            await cancel_and_wait(*self._judging.values())

    # --- which are ours

    def _begin(self) -> None:
        waiting = self._state.objects
        while waiting and len(self._judging) < DECISIONS_IN_PROGRESS_MAX:
            found = waiting.pop(next(iter(waiting)))
            name = found["metadata"]["name"]
            if name in self._judging or not _token(found):
                continue
            if _conditions(found):
                self._look_whose(found)
                continue
            self._judging[name] = spawn(self._settle(name, found), f"judge the certificate request {name}")
            self._judging[name].add_done_callback(partial(self._settled, name))

    def _settled(self, name: str, _task: asyncio.Task[None]) -> None:
        del self._judging[name]
        self._begin()

    # --- one of them

    async def _settle(self, name: str, seen: Json) -> None:
        """Until it is decided, by whomever, or gone."""
        backoff = Backoff(random.Random(), least=0.01, first=0.05, most=15.0)
        found: Json | None = seen
        while True:
            try:
                if found is None:
                    found = (await self._client.send(get_object(Ref(CERTIFICATE_REQUEST, name)))).body
                await self._decide(found)
                return
            except KubeUnreachable as error:
                _tell(logs.WARNING, "a certificate request cannot be judged yet", request=name, reason=error)
            except KubeError as error:
                if error.is_not_found:
                    return
                if not error.is_conflict:
                    _tell(logs.WARNING, "a certificate request is not judged", request=name, reason=error)
                if error.status in _INVALID:
                    return
            # Somebody else may have decided, or another request may have the name by now: look at it anew.
            found = None
            await asyncio.sleep(backoff.seconds())

    async def _decide(self, found: Json) -> None:
        """Having told the audit of what was decided here: also when the answer to that was lost."""
        verdict = decide_csr(found)
        if verdict is None:
            return
        condition = verdict.condition(self._replica)
        before = _conditions(found)
        if not before:
            await self._client.send(_with_condition(found, condition))
        elif before[0].get("message") != condition["message"]:
            self._look_whose(found)
            return
        self._audit.record_csr_decision(
            verdict.outcome, node=verdict.node, token=verdict.token, reason=verdict.objection
        )

    # --- who else approves

    async def _look_for_another(self) -> None:
        """kubeadm brings its binding back when it upgrades a cluster, or is asked to."""
        with suppress(KubeError, KubeUnreachable):
            await self._client.send(get_object(AUTO_APPROVE_BINDING))
            self._warn()

    def _look_whose(self, found: Json) -> None:
        if any(each.get("type") == _APPROVED and each.get("reason") != REASON for each in _conditions(found)):
            self._warn()

    def _warn(self) -> None:
        """Once: it stays so until an operator has done something about it."""
        if not self._warned:
            self._warned = True
            advice = f"kubectl delete clusterrolebinding {AUTO_APPROVE_BINDING.name}"
            _tell(logs.WARNING, "bootstrap tokens are approved as any node, not by us", advice=advice)


def _token(found: Json) -> str:
    return bootstrap_tokens.id_of(str((found.get("spec") or {}).get("username", "")))


def _conditions(found: Json) -> list[Json]:
    return list((found.get("status") or {}).get("conditions") or [])


def _with_condition(found: Json, condition: Json) -> ApiRequest:
    """Of the very version that was judged: any other is answered 409."""
    body = {
        **found,
        "apiVersion": "certificates.k8s.io/v1",
        "kind": CERTIFICATE_REQUEST.name,
        "status": {"conditions": [condition]},
    }
    path = Ref(CERTIFICATE_REQUEST, found["metadata"]["name"]).path
    return ApiRequest("PUT", f"{path}/approval", body=body)


def _tell(level: int, message: str, **facts: object) -> None:
    logs.event("join-service", level, message, **facts)
