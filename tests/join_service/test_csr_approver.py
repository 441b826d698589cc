"""CSRs of kubelets' first client certificates: approved for the node of the token's ticket only."""

from __future__ import annotations

import asyncio
import base64
import json
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from bootbridge.join_service import main
from bootbridge.join_service.audit import AuditLog
from bootbridge.join_service.bootstrap_tokens import GROUP, node_group
from bootbridge.join_service.csr_approver import (
    AUTO_APPROVE_BINDING,
    DECISIONS_IN_PROGRESS_MAX,
    SIGNER,
    CsrApprover,
    decide_csr,
)
from bootbridge.kube.errors import KubeError, KubeUnreachable
from tests.join_service.environment import NOW, MemoryLines, csr, pem
from tests.kube.conftest import running, until
from tests.support.fake_api_objects import Call, MemoryApi

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
BINDINGS = "/api/v1/namespaces/kube-system/configmaps/bootbridge-node-"
TOKEN_USER = "system:bootstrap:abcdef"
OTHER_APPROVER = "another approver accepts any node name"
KUBELET_USAGES = ("digital signature", "client auth")


def csr_object(
    subject: str = "worker-0",
    *,
    name: str = "csr-1",
    ticket: str = "worker-0",
    user: str = TOKEN_USER,
    usages: tuple[str, ...] = KUBELET_USAGES,
    signer: str = SIGNER,
    request: str | None = None,
    **wrong: Any,
) -> dict[str, Any]:
    """Returns a CSR as the API server stores it, made with the token of `ticket`'s node."""
    text = pem(csr(subject, **wrong)) if request is None else request
    spec = {
        "signerName": signer,
        "username": user,
        "groups": ["system:bootstrappers", GROUP, *([node_group(ticket)] if ticket else [])],
        "usages": list(usages),
        "request": base64.b64encode(text.encode()).decode(),
    }
    return {"metadata": {"name": name}, "spec": spec}


class TestDecision:
    @pytest.mark.parametrize("node", ["worker-0", "worker-0.zone-a.example.com"])
    @pytest.mark.parametrize("usages", [KUBELET_USAGES, (*KUBELET_USAGES, "key encipherment")])
    def test_a_csr_for_the_tokens_node_is_approved(self, node: str, usages: tuple[str, ...]) -> None:
        decision = decide_csr(csr_object(node, ticket=node, usages=usages))
        assert decision is not None
        assert (decision.outcome, decision.node, decision.token_id) == ("approved", node, "abcdef")

    @pytest.mark.parametrize(
        ("found", "reason"),
        [
            (csr_object("worker-1"), "(expected system:node:worker-0)"),
            (csr_object(common_names=["worker-0"]), "CSR: common name"),
            (csr_object(common_names=["system:node:worker-0", "system:node:worker-1"]), "CSR: common name"),
            (csr_object(common_names=[]), "CSR: common name"),
            (csr_object("a-b", ticket="a.b"), "(expected system:node:a.b)"),
            (csr_object(organisations=["system:masters"]), "organisation is not system:nodes"),
            (
                csr_object(organisations=["system:nodes", "system:masters"]),
                "organisation is not system:nodes",
            ),
            (csr_object(organisations=[]), "organisation is not system:nodes"),
            (
                csr_object(more=[x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x")]),
                "subject has more than organisation and common name",
            ),
            (csr_object(sans=[x509.DNSName("worker-0")]), "attributes are not allowed"),
            (csr_object(sans=[x509.IPAddress(ip_address("10.0.0.5"))]), "subject alternative name 10.0.0.5"),
            (csr_object(usages=(*KUBELET_USAGES, "server auth")), "usage not allowed: server auth"),
            (csr_object(usages=("cert sign",)), "usage not allowed: cert sign"),
            (csr_object(ticket=""), "does not belong to a ticket"),
            (csr_object(key=rsa.generate_private_key(65537, 2048)), "CSR: unsupported key type"),
            (csr_object(key=ec.generate_private_key(ec.SECP384R1())), "CSR: unsupported key type"),
            (csr_object(request=""), "missing"),
            (csr_object(request="not PEM"), "missing"),
            (csr_object(request=pem(b"not DER")), "malformed CSR"),
        ],
    )
    def test_any_other_csr_of_a_token_is_denied(self, found: dict[str, Any], reason: str) -> None:
        decision = decide_csr(found)
        assert decision is not None
        assert decision.outcome == "denied"
        assert reason in decision.denial

    @pytest.mark.parametrize(
        "text",
        [
            pem(csr("worker-1")) + pem(csr("worker-0")),
            pem(csr("worker-0")) + pem(csr("worker-1")),
            "x\n" + pem(csr("worker-0")),
            pem(csr("worker-0")).replace("REQUEST-----\n", "REQUEST-----\nX: y\n\n", 1),
            pem(csr("worker-0")).replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"),
            pem(csr("worker-0")).replace("\n", "\r\n"),
        ],
    )
    def test_a_csr_that_parsers_may_read_differently_is_denied(self, text: str) -> None:
        """Another program signs it, and parses the same bytes."""
        decision = decide_csr(csr_object(request=text))
        assert decision is not None
        assert decision.outcome == "denied"

    @pytest.mark.parametrize(
        "found",
        [
            csr_object(user="system:node:worker-0"),
            csr_object(user="kubernetes-admin"),
            csr_object(user="system:serviceaccount:kube-system:system:bootstrap:abcdef"),
            csr_object(signer="kubernetes.io/kubelet-serving"),
            csr_object(signer="example.com/own"),
        ],
    )
    def test_csrs_of_other_users_and_signers_are_ignored(self, found: dict[str, Any]) -> None:
        assert decide_csr(found) is None


class Approving:
    def __init__(self) -> None:
        self.api = MemoryApi()
        self.log = MemoryLines()

    def approver(self, replica: str = "control-1") -> CsrApprover:
        audit = AuditLog(self.log, lambda: NOW)
        return CsrApprover(self.api, audit, replica, "kube-system")  # type: ignore[arg-type]

    def add_csr(self, *arguments: Any, **options: Any) -> None:
        found = csr_object(*arguments, **options)
        self.api.put(f"{REQUESTS}/{found['metadata']['name']}", found)

    def decision(self, name: str = "csr-1") -> str:
        conditions = self.api.read(f"{REQUESTS}/{name}").get("status", {}).get("conditions", [])
        return " and ".join(each["type"] for each in conditions)

    def failing_once(self, method: str, error: Exception) -> None:
        errors = [error]

        def fault(request: Call) -> None:
            if request.method == method and REQUESTS in request.path and errors:
                raise errors.pop()

        self.api.faults.append(fault)

    @property
    def decisions_sent(self) -> int:
        return sum(request.method == "PUT" for request in self.api.calls)

    @property
    def decisions_begun(self) -> int:
        """Each begins with a look at the name binding."""
        return sum(BINDINGS in call.path for call in self.api.calls)

    @property
    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@pytest.fixture
async def approving() -> Approving:
    return Approving()


async def test_a_token_cannot_become_another_node(approving: Approving) -> None:
    async with running(approving.approver().run()):
        approving.add_csr("worker-1", ticket="worker-0")
        await until(approving.decision)
        assert approving.decision() == "Denied"
        (line,) = approving.audit
    assert (line["event"], line["outcome"]) == ("client certificate", "denied")
    assert (line["node"], line["tokenID"]) == ("worker-0", "abcdef")
    assert "(expected system:node:worker-0)" in line["reason"]


async def test_existing_and_new_csrs_are_approved(approving: Approving) -> None:
    approving.add_csr(name="before")
    async with running(approving.approver().run()):
        await until(lambda: approving.decision("before"))
        await until(lambda: approving.api.watches)
        approving.add_csr(name="after")
        await until(lambda: approving.decision("after"))
    assert [approving.decision(name) for name in ("before", "after")] == ["Approved", "Approved"]
    assert [line["outcome"] for line in approving.audit] == ["approved", "approved"]


async def test_csrs_for_other_approvers_are_left_undecided(approving: Approving) -> None:
    approving.add_csr(name="renewal", user="system:node:worker-0")
    approving.add_csr(name="serving", signer="kubernetes.io/kubelet-serving")
    approving.add_csr(name="own")
    async with running(approving.approver().run()):
        await until(lambda: approving.decision("own"))
    assert not any(map(approving.decision, ("renewal", "serving")))
    assert len(approving.audit) == 1


async def test_an_existing_decision_is_not_changed(approving: Approving) -> None:
    found = csr_object("worker-1", name="decided")
    condition = {"type": "Approved", "reason": "an operator's", "message": "it is fine"}
    approving.api.put(f"{REQUESTS}/decided", found | {"status": {"conditions": [condition]}})
    approving.add_csr(name="own")
    async with running(approving.approver().run()):
        await until(lambda: approving.decision("own"))
    assert approving.decision("decided") == "Approved"


async def test_one_of_several_replicas_decides_and_writes_the_audit_line(approving: Approving) -> None:
    async with running(approving.approver("control-1").run()), running(approving.approver("control-2").run()):
        await until(lambda: approving.api.watches == 2)
        for number in range(20):
            approving.add_csr(name=f"csr-{number}", subject="worker-0" if number % 2 else "worker-1")
        await until(lambda: all(approving.decision(f"csr-{number}") for number in range(20)))
    assert {approving.decision(f"csr-{number}") for number in range(0, 20, 2)} == {"Denied"}
    assert {approving.decision(f"csr-{number}") for number in range(1, 20, 2)} == {"Approved"}
    assert len(approving.audit) == 20


@pytest.mark.parametrize(
    "error",
    [
        KubeError(409, "Conflict", "the object has been modified"),
        KubeError(403, "Forbidden", "not yet"),
        KubeError(429, "TooManyRequests", "later"),
        KubeUnreachable("no route"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_errors_of_the_api_server_are_retried(
    approving: Approving, error: Exception, method: str
) -> None:
    async with running(approving.approver().run()):
        await until(lambda: approving.api.watches)
        approving.failing_once("PUT", KubeError(500, "InternalError", "so that it is read again"))
        approving.failing_once(method, error)
        approving.add_csr()
        await until(approving.decision)
    assert approving.decision() == "Approved"
    assert len(approving.audit) == 1


async def test_a_decision_whose_response_was_lost_is_audited(approving: Approving) -> None:
    def response_lost(request: Call) -> None:
        if request.method == "PUT" and not approving.decision():
            body = dict(request.body or {})
            approving.api.put(f"{REQUESTS}/csr-1", body)
            raise KubeUnreachable("no response")

    approving.api.faults.append(response_lost)
    async with running(approving.approver().run()):
        approving.add_csr()
        await until(lambda: approving.audit)
    assert [line["outcome"] for line in approving.audit] == ["approved"]


async def test_a_new_csr_with_the_same_name_is_decided_separately(approving: Approving) -> None:
    """Between a failure and the next attempt, a caller may replace its CSR."""

    def replaced(request: Call) -> None:
        if request.method == "PUT" and (request.body or {})["metadata"]["name"] == "csr-1":
            approving.api.faults.clear()
            approving.api.remove(f"{REQUESTS}/csr-1")
            approving.add_csr("worker-1")

    approving.api.faults.append(replaced)
    async with running(approving.approver().run()):
        await until(lambda: approving.api.watches)
        approving.add_csr("worker-0")
        await until(lambda: not approving.api.faults and approving.decision())
    assert approving.decision() == "Denied"


async def test_a_csr_that_cannot_be_decided_does_not_delay_others(
    approving: Approving, caplog: pytest.LogCaptureFixture
) -> None:
    def invalid(request: Call) -> None:
        if request.method == "PUT" and "/bad-" in request.path:
            raise KubeError(422, "Invalid", "never")

    approving.api.faults.append(invalid)
    for number in range(2 * DECISIONS_IN_PROGRESS_MAX):
        approving.add_csr(name=f"bad-{number}")
    approving.add_csr(name="good")
    async with running(approving.approver().run()):
        await until(lambda: approving.decision("good"))
    assert caplog.text.count("CSR decision failed") == 2 * DECISIONS_IN_PROGRESS_MAX


async def test_the_csr_of_an_evicted_node_is_denied(approving: Approving) -> None:
    """Its ticket was being issued during the eviction, so that the token was created after it."""
    approving.api.put(f"{BINDINGS}worker-0", {"metadata": {"name": "x"}, "data": {"identity": "evicted"}})
    approving.api.put(f"{BINDINGS}worker-1", {"metadata": {"name": "y"}, "data": {"identity": "tpm:a"}})
    approving.add_csr("worker-0", ticket="worker-0", name="evicted")
    approving.add_csr("worker-1", ticket="worker-1", name="other")
    async with running(approving.approver().run()):
        await until(lambda: approving.decision("evicted") and approving.decision("other"))
    assert (approving.decision("evicted"), approving.decision("other")) == ("Denied", "Approved")


async def test_a_deleted_csr_is_dropped(approving: Approving, caplog: pytest.LogCaptureFixture) -> None:
    async with running(approving.approver().run()):
        await until(lambda: approving.api.watches)
        approving.api.answering.clear()
        approving.add_csr()
        await until(lambda: approving.decisions_begun)
        approving.api.remove(f"{REQUESTS}/csr-1")
        approving.api.answering.set()
        approving.add_csr(name="next")
        await until(lambda: approving.decision("next"))
    assert len(approving.audit) == 1
    assert "CSR decision" not in caplog.text


async def test_kubeadms_auto_approve_binding_is_logged_at_start(
    approving: Approving, caplog: pytest.LogCaptureFixture
) -> None:
    approving.api.put(AUTO_APPROVE_BINDING.path, {"metadata": {"name": AUTO_APPROVE_BINDING.name}})
    async with running(approving.approver().run()):
        await until(lambda: OTHER_APPROVER in caplog.text)


async def test_an_approval_by_another_approver_is_logged_once(
    approving: Approving, caplog: pytest.LogCaptureFixture
) -> None:
    """As kube-controller-manager does while kubeadm's binding exists."""
    async with running(approving.approver().run()):
        await until(lambda: approving.api.watches)
        assert OTHER_APPROVER not in caplog.text
        condition = {"type": "Approved", "reason": "AutoApproved", "message": "by the controller manager"}
        for name in ("csr-1", "csr-2"):
            approving.api.put(
                f"{REQUESTS}/{name}",
                csr_object("worker-1", name=name) | {"status": {"conditions": [condition]}},
            )
        approving.add_csr(name="own")
        await until(lambda: approving.decision("own"))
    assert caplog.text.count(OTHER_APPROVER) == 1


async def test_a_concurrent_approval_by_another_approver_is_logged(
    approving: Approving, caplog: pytest.LogCaptureFixture
) -> None:
    """Then a token may have become another node; a denial cannot undo that."""
    condition = {"type": "Approved", "reason": "AutoApproved", "message": "by the controller manager"}

    def approve_first(request: Call) -> None:
        if request.method == "PUT":
            approving.api.faults.clear()
            found = approving.api.read(f"{REQUESTS}/csr-1")
            approving.api.put(f"{REQUESTS}/csr-1", found | {"status": {"conditions": [condition]}})

    approving.api.faults.append(approve_first)
    async with running(approving.approver().run()):
        await until(lambda: approving.api.watches)
        approving.add_csr("worker-1")
        await until(lambda: OTHER_APPROVER in caplog.text)
    assert approving.decision() == "Approved"
    assert approving.audit == []


async def test_stopping_leaves_no_tasks(approving: Approving) -> None:
    before = asyncio.all_tasks()
    async with running(approving.approver().run()):
        await until(lambda: approving.api.watches)
        approving.api.answering.clear()
        for number in range(2 * DECISIONS_IN_PROGRESS_MAX):
            approving.add_csr(name=f"csr-{number}")
        await until(lambda: approving.decisions_begun == DECISIONS_IN_PROGRESS_MAX)
    assert asyncio.all_tasks() == before
    assert approving.decisions_begun == DECISIONS_IN_PROGRESS_MAX


async def test_a_failed_approver_is_restarted_and_lists_again(
    approving: Approving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main.Backoff, "seconds", lambda _: 0.0)
    approving.failing_once("GET", RuntimeError("a bug"))
    approving.add_csr()
    async with running(main.run_csr_approver(approving.approver)):
        await until(approving.decision)
    assert "CSR approver failed" in caplog.text
