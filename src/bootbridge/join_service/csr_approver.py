"""Approves the CSR of a kubelet's first client certificate: a ticket's token is valid for its node name only.

By default kubeadm lets kube-controller-manager approve any node name that a bootstrap token requests, so
that one compromised worker could become any other node. `deploy` removes that permission; this replaces it.

Only CSRs made with bootstrap tokens are decided here. All others, such as renewals, are left to their
approvers. Several replicas may decide the same CSR: they agree, and the API server accepts the first.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bootbridge.common.backoff import Backoff
from bootbridge.join_api.errors import JoinRefused
from bootbridge.join_api.kubelet_certificate import KubeletCsr
from bootbridge.join_service import bootstrap_tokens
from bootbridge.join_service.audit import AuditLog, AuditOutcome
from bootbridge.join_service.name_bindings import is_evicted, node_binding_name
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kinds import CERTIFICATE_REQUEST, CLUSTER_ROLE_BINDING, CONFIG_MAP
from bootbridge.kube.list_watch import ListWatch
from bootbridge.kube.objects import Ref, get_object
from bootbridge.kube.reflector import Reflector, WatchedResource
from bootbridge.kube.requests import ApiRequest, Json
from bootbridge.runtime import logs
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.runtime.tasks import spawn

SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
# kubeadm's: lets kube-controller-manager approve any node name for a bootstrap token.
AUTO_APPROVE_BINDING: Final = Ref(CLUSTER_ROLE_BINDING, "kubeadm:node-autoapprove-bootstrap")
REASON: Final = "BootbridgeTicket"
# Further CSRs wait in the watch's cache; the API server bounds their number.
DECISIONS_IN_PROGRESS_MAX: Final = 8
_USAGES: Final = frozenset({"digital signature", "key encipherment", "client auth"})
_PEM: Final = re.compile(
    rb"-----BEGIN CERTIFICATE REQUEST-----\n([A-Za-z0-9+/=\n]+)-----END CERTIFICATE REQUEST-----\n?"
)
_SIGNER_SELECTOR: Final = f"spec.signerName={SIGNER}"
_APPROVED: Final = "Approved"
# Permanent: a retry would get the same answer.
_INVALID: Final = (400, 422)


@dataclass(frozen=True)
class CsrDecision:
    """About one CSR that was made with a bootstrap token."""

    token_id: str
    node: str  # the token's node name; empty: not a ticket's token
    denial: str = ""  # the reason; empty: approved

    @property
    def outcome(self) -> AuditOutcome:
        return AuditOutcome.DENIED if self.denial else AuditOutcome.APPROVED

    def condition(self, replica: str) -> Json:
        text = self.denial or f"the token belongs to the ticket of {self.node}"
        return {
            "type": "Denied" if self.denial else _APPROVED,
            "status": "True",
            "reason": REASON,
            "message": f"{text}; decided by the join service on {replica}",
        }


def decide_csr(found: Json) -> CsrDecision | None:
    """Returns None unless a bootstrap token requests a kubelet client certificate."""
    spec, token_id = found.get("spec") or {}, _token_id(found)
    if not token_id or spec.get("signerName") != SIGNER:
        return None
    # The API server sets user and groups from the request's authentication; a caller cannot choose them.
    node = bootstrap_tokens.node_from_groups(spec.get("groups") or [])
    try:
        _require_subject(node, spec)
    except JoinRefused as refusal:
        return CsrDecision(token_id, node, str(refusal))
    return CsrDecision(token_id, node)


def _require_subject(node: str, spec: Json) -> None:
    if not node:
        raise JoinRefused("the bootstrap token does not belong to a ticket")
    csr = KubeletCsr(_der(spec))
    csr.require_subject(node, ())
    csr.require_no_attributes()
    if others := set(spec.get("usages") or []) - _USAGES:
        raise JoinRefused(f"usage not allowed: {min(others)}")


def _der(spec: Json) -> bytes:
    """Accepts only the PEM form that all parsers read alike: the signer is another program."""
    try:
        pem = _PEM.fullmatch(base64.b64decode(spec.get("request") or "", validate=True))
        return base64.b64decode(pem[1].replace(b"\n", b""), validate=True) if pem else b""
    except (binascii.Error, ValueError):
        return b""


class CsrApprover:
    """`run` once, until cancelled. `replica` identifies this join service in its decisions."""

    def __init__(self, client: KubeClient, audit: AuditLog, replica: str, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._audit = audit
        self._replica = replica
        self._warned = False
        # Its objects are the CSRs that wait; each is removed when its decision starts.
        self._list_watch = ListWatch(random.Random())
        self._deciding: dict[str, asyncio.Task[None]] = {}
        resource = WatchedResource(CERTIFICATE_REQUEST, fields=_SIGNER_SELECTOR)
        self._reflector = Reflector(client, resource, self._list_watch, self._decide_waiting)

    async def run(self) -> None:
        try:
            await self._check_auto_approve_binding()
            await self._reflector.run()
        finally:
            self._list_watch.objects.clear()  # else a finished decision would start the next
            await cancel_and_wait(*self._deciding.values())

    # --- selection

    def _decide_waiting(self) -> None:
        waiting = self._list_watch.objects
        while waiting and len(self._deciding) < DECISIONS_IN_PROGRESS_MAX:
            found = waiting.pop(next(iter(waiting)))
            name = found["metadata"]["name"]
            if name in self._deciding or not _token_id(found):
                continue
            if _conditions(found):
                self._check_other_approver(found)
                continue
            self._deciding[name] = spawn(self._decide_until_done(name, found), f"decide CSR {name}")
            self._deciding[name].add_done_callback(partial(self._done, name))

    def _done(self, name: str, _task: asyncio.Task[None]) -> None:
        del self._deciding[name]
        self._decide_waiting()

    # --- one CSR

    async def _decide_until_done(self, name: str, seen: Json) -> None:
        """Retries until the CSR is decided, here or elsewhere, or deleted."""
        backoff = Backoff(random.Random(), least=0.01, first=0.05, most=15.0)
        found: Json | None = seen
        while True:
            try:
                if found is None:
                    found = (await self._client.send(get_object(Ref(CERTIFICATE_REQUEST, name)))).body
                await self._decide(found)
                return
            except KubeUnreachable as error:
                _log(logs.WARNING, "CSR decision delayed", csr=name, reason=error)
            except KubeError as error:
                if error.is_not_found:
                    return
                if not error.is_conflict:
                    _log(logs.WARNING, "CSR decision failed", csr=name, reason=error)
                if error.status in _INVALID:
                    return
            # Read it again: another approver may have decided, or another CSR may have the name.
            found = None
            await asyncio.sleep(backoff.seconds())

    async def _decide(self, found: Json) -> None:
        """Writes an audit line for each own decision, even if the response to its update was lost."""
        decision = decide_csr(found)
        if decision is None:
            return
        if not decision.denial and await self._is_evicted(decision.node):
            decision = replace(decision, denial=f"{decision.node} was evicted")
        condition = decision.condition(self._replica)
        conditions = _conditions(found)
        if not conditions:
            await self._client.send(with_condition(found, condition))
        elif conditions[0].get("message") != condition["message"]:
            self._check_other_approver(found)
            return
        self._audit.record_csr_decision(
            decision.outcome, node=decision.node, token_id=decision.token_id, reason=decision.denial
        )

    async def _is_evicted(self, node: str) -> bool:
        """A ticket that was being issued during the eviction may have created a token after it."""
        binding = await self._client.get_or_none(Ref(CONFIG_MAP, node_binding_name(node), self._namespace))
        return binding is not None and is_evicted(binding)

    # --- other approvers

    async def _check_auto_approve_binding(self) -> None:
        """kubeadm restores its binding when it upgrades a cluster."""
        with suppress(KubeError, KubeUnreachable):
            await self._client.send(get_object(AUTO_APPROVE_BINDING))
            self._warn_once()

    def _check_other_approver(self, found: Json) -> None:
        if any(each.get("type") == _APPROVED and each.get("reason") != REASON for each in _conditions(found)):
            self._warn_once()

    def _warn_once(self) -> None:
        """Once, as it persists until an operator acts."""
        if not self._warned:
            self._warned = True
            advice = f"kubectl delete clusterrolebinding {AUTO_APPROVE_BINDING.name}"
            _log(logs.WARNING, "another approver accepts any node name for bootstrap tokens", advice=advice)


def _token_id(found: Json) -> str:
    return bootstrap_tokens.token_id_from_user(str((found.get("spec") or {}).get("username", "")))


def pending(found: Json) -> bool:
    """Returns whether nothing was decided about the CSR yet."""
    return not _conditions(found)


def _conditions(found: Json) -> list[Json]:
    return list((found.get("status") or {}).get("conditions") or [])


def with_condition(found: Json, condition: Json) -> ApiRequest:
    """Decides the CSR. Updates the version that was decided; a newer one makes it a 409."""
    body = {
        **found,
        "apiVersion": "certificates.k8s.io/v1",
        "kind": CERTIFICATE_REQUEST.name,
        "status": {"conditions": [condition]},
    }
    path = Ref(CERTIFICATE_REQUEST, found["metadata"]["name"]).path
    return ApiRequest("PUT", f"{path}/approval", body=body)


def _log(level: int, message: str, **fields: object) -> None:
    logs.event("join-service", level, message, **fields)
