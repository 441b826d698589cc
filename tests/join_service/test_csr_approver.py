"""A kubelet's first certificate: for the node that its token's ticket names, and for no other."""

from __future__ import annotations

import asyncio
import base64
import io
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
from bootbridge.kube.requests import ApiRequest
from tests.join_service.environment import NOW, csr, pem
from tests.join_service.memory_api import MemoryApi
from tests.kube.conftest import running, until

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TOKEN_USER = "system:bootstrap:abcdef"
ANY_NAME = "bootstrap tokens are approved as any node"
KUBELET_USAGES = ("digital signature", "client auth")


def asked(
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
    """A certificate request as the API server keeps it, made with the token of `ticket`'s node."""
    text = pem(csr(subject, **wrong)) if request is None else request
    spec = {
        "signerName": signer,
        "username": user,
        "groups": ["system:bootstrappers", GROUP, *([node_group(ticket)] if ticket else [])],
        "usages": list(usages),
        "request": base64.b64encode(text.encode()).decode(),
    }
    return {"metadata": {"name": name}, "spec": spec}


class TestJudging:
    @pytest.mark.parametrize("node", ["worker-0", "worker-0.zone-a.example.com"])
    @pytest.mark.parametrize("usages", [KUBELET_USAGES, (*KUBELET_USAGES, "key encipherment")])
    def test_a_kubelet_with_its_own_token_is_approved(self, node: str, usages: tuple[str, ...]) -> None:
        verdict = decide_csr(asked(node, ticket=node, usages=usages))
        assert verdict is not None
        assert (verdict.outcome, verdict.node, verdict.token) == ("approved", node, "abcdef")

    @pytest.mark.parametrize(
        ("found", "why"),
        [
            (asked("worker-1"), "common name is not system:node:worker-0"),
            (asked(common_names=["worker-0"]), "common name is not"),
            (asked(common_names=["system:node:worker-0", "system:node:worker-1"]), "common name is not"),
            (asked(common_names=[]), "common name is not"),
            (asked("a-b", ticket="a.b"), "common name is not system:node:a.b"),
            (asked(organisations=["system:masters"]), "organisation is not system:nodes"),
            (asked(organisations=["system:nodes", "system:masters"]), "organisation is not system:nodes"),
            (asked(organisations=[]), "organisation is not system:nodes"),
            (
                asked(more=[x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x")]),
                "says more than organisation and common name",
            ),
            (asked(sans=[x509.DNSName("worker-0")]), "asks for more than its subject"),
            (asked(sans=[x509.IPAddress(ip_address("10.0.0.5"))]), "asks for 10.0.0.5"),
            (asked(usages=(*KUBELET_USAGES, "server auth")), "would be for server auth"),
            (asked(usages=("cert sign",)), "would be for cert sign"),
            (asked(ticket=""), "of no ticket"),
            (asked(key=rsa.generate_private_key(65537, 2048)), "not on the curve P-256"),
            (asked(key=ec.generate_private_key(ec.SECP384R1())), "not on the curve P-256"),
            (asked(request=""), "missing"),
            (asked(request="not PEM"), "missing"),
            (asked(request=pem(b"not DER")), "cannot be read"),
        ],
    )
    def test_everything_else_of_a_token_is_denied(self, found: dict[str, Any], why: str) -> None:
        verdict = decide_csr(found)
        assert verdict is not None
        assert verdict.outcome == "denied"
        assert why in verdict.objection

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
    def test_a_request_that_another_program_might_read_differently_is_denied(self, text: str) -> None:
        """What is judged here is signed elsewhere, from the same bytes by another parser."""
        verdict = decide_csr(asked(request=text))
        assert verdict is not None
        assert verdict.outcome == "denied"

    @pytest.mark.parametrize(
        "found",
        [
            asked(user="system:node:worker-0"),
            asked(user="kubernetes-admin"),
            asked(user="system:serviceaccount:kube-system:system:bootstrap:abcdef"),
            asked(signer="kubernetes.io/kubelet-serving"),
            asked(signer="example.com/own"),
        ],
    )
    def test_what_is_not_a_kubelets_first_is_left_alone(self, found: dict[str, Any]) -> None:
        assert decide_csr(found) is None


class Watched:
    def __init__(self) -> None:
        self.api = MemoryApi()
        self.log = io.StringIO()

    def approver(self, replica: str = "control-1") -> CsrApprover:
        audit = AuditLog(self.log, lambda: NOW)
        return CsrApprover(self.api, audit, replica)  # type: ignore[arg-type]

    def ask(self, *words: Any, **more: Any) -> None:
        found = asked(*words, **more)
        self.api.put(f"{REQUESTS}/{found['metadata']['name']}", found)

    def verdict(self, name: str = "csr-1") -> str:
        conditions = self.api.objects[f"{REQUESTS}/{name}"].get("status", {}).get("conditions", [])
        return " and ".join(each["type"] for each in conditions)

    def failing_once(self, method: str, error: Exception) -> None:
        errors = [error]

        def fault(request: ApiRequest) -> None:
            if request.method == method and REQUESTS in request.path and errors:
                raise errors.pop()

        self.api.faults.append(fault)

    @property
    def asked_for(self) -> int:
        """How many decisions the API server has been asked to take."""
        return sum(request.method == "PUT" for request in self.api.requests)

    @property
    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@pytest.fixture
async def watched() -> Watched:
    return Watched()


async def test_a_tickets_token_cannot_become_another_node(watched: Watched) -> None:
    async with running(watched.approver().run()):
        watched.ask("worker-1", ticket="worker-0")
        await until(watched.verdict)
        assert watched.verdict() == "Denied"
        (line,) = watched.audit
    assert (line["what"], line["outcome"]) == ("client certificate", "denied")
    assert (line["node"], line["tokenID"]) == ("worker-0", "abcdef")
    assert "common name is not system:node:worker-0" in line["reason"]


async def test_what_came_before_is_approved_and_what_comes_while_it_watches(watched: Watched) -> None:
    watched.ask(name="before")
    async with running(watched.approver().run()):
        await until(lambda: watched.verdict("before"))
        await until(lambda: watched.api.watches)
        watched.ask(name="after")
        await until(lambda: watched.verdict("after"))
    assert [watched.verdict(name) for name in ("before", "after")] == ["Approved", "Approved"]
    assert [line["outcome"] for line in watched.audit] == ["approved", "approved"]


async def test_those_of_others_are_left_alone(watched: Watched) -> None:
    watched.ask(name="renewal", user="system:node:worker-0")
    watched.ask(name="serving", signer="kubernetes.io/kubelet-serving")
    watched.ask(name="own")
    async with running(watched.approver().run()):
        await until(lambda: watched.verdict("own"))
    assert not any(map(watched.verdict, ("renewal", "serving")))
    assert len(watched.audit) == 1


async def test_a_decision_is_never_changed(watched: Watched) -> None:
    found = asked("worker-1", name="decided")
    condition = {"type": "Approved", "reason": "an operator's", "message": "it is fine"}
    watched.api.put(f"{REQUESTS}/decided", found | {"status": {"conditions": [condition]}})
    watched.ask(name="own")
    async with running(watched.approver().run()):
        await until(lambda: watched.verdict("own"))
    assert watched.verdict("decided") == "Approved"


async def test_of_several_replicas_one_decides_and_one_tells_the_audit(watched: Watched) -> None:
    async with running(watched.approver("control-1").run()), running(watched.approver("control-2").run()):
        await until(lambda: watched.api.watches == 2)
        for number in range(20):
            watched.ask(name=f"csr-{number}", subject="worker-0" if number % 2 else "worker-1")
        await until(lambda: all(watched.verdict(f"csr-{number}") for number in range(20)))
    assert {watched.verdict(f"csr-{number}") for number in range(0, 20, 2)} == {"Denied"}
    assert {watched.verdict(f"csr-{number}") for number in range(1, 20, 2)} == {"Approved"}
    assert len(watched.audit) == 20


@pytest.mark.parametrize(
    "trouble",
    [
        KubeError(409, "Conflict", "the object has been modified"),
        KubeError(403, "Forbidden", "not yet"),
        KubeError(429, "TooManyRequests", "later"),
        KubeUnreachable("no route"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "GET"])
async def test_trouble_with_the_api_server_passes(watched: Watched, trouble: Exception, method: str) -> None:
    async with running(watched.approver().run()):
        await until(lambda: watched.api.watches)
        watched.failing_once("PUT", KubeError(500, "InternalError", "so that it is read again"))
        watched.failing_once(method, trouble)
        watched.ask()
        await until(watched.verdict)
    assert watched.verdict() == "Approved"
    assert len(watched.audit) == 1


async def test_a_decision_whose_answer_was_lost_is_told_to_the_audit(watched: Watched) -> None:
    def answer_lost(request: ApiRequest) -> None:
        if request.method == "PUT" and not watched.verdict():
            body = dict(request.body or {})
            watched.api.put(f"{REQUESTS}/csr-1", body)
            raise KubeUnreachable("no answer")

    watched.api.faults.append(answer_lost)
    async with running(watched.approver().run()):
        watched.ask()
        await until(lambda: watched.audit)
    assert [line["outcome"] for line in watched.audit] == ["approved"]


async def test_another_request_under_the_same_name_is_judged_for_itself(watched: Watched) -> None:
    """Between a failure and the next attempt, whoever asked may ask for something else."""

    def replaced(request: ApiRequest) -> None:
        if request.method == "PUT" and (request.body or {})["metadata"]["name"] == "csr-1":
            watched.api.faults.clear()
            watched.api.remove(f"{REQUESTS}/csr-1")
            watched.ask("worker-1")

    watched.api.faults.append(replaced)
    async with running(watched.approver().run()):
        await until(lambda: watched.api.watches)
        watched.ask("worker-0")
        await until(lambda: not watched.api.faults and watched.verdict())
    assert watched.verdict() == "Denied"


async def test_one_that_cannot_be_decided_delays_no_other(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def invalid(request: ApiRequest) -> None:
        if request.method == "PUT" and "/bad-" in request.path:
            raise KubeError(422, "Invalid", "never")

    watched.api.faults.append(invalid)
    for number in range(2 * DECISIONS_IN_PROGRESS_MAX):
        watched.ask(name=f"bad-{number}")
    watched.ask(name="good")
    async with running(watched.approver().run()):
        await until(lambda: watched.verdict("good"))
    assert caplog.text.count("a certificate request is not judged") == 2 * DECISIONS_IN_PROGRESS_MAX


async def test_one_that_is_withdrawn_is_let_go(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    async with running(watched.approver().run()):
        await until(lambda: watched.api.watches)
        watched.api.answering.clear()
        watched.ask()
        await until(lambda: watched.asked_for)
        watched.api.remove(f"{REQUESTS}/csr-1")
        watched.api.answering.set()
        watched.ask(name="next")
        await until(lambda: watched.verdict("next"))
    assert len(watched.audit) == 1
    assert "judged" not in caplog.text


async def test_that_kubeadms_approval_of_any_name_is_back_is_told_at_the_start(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.api.put(AUTO_APPROVE_BINDING.path, {"metadata": {"name": AUTO_APPROVE_BINDING.name}})
    async with running(watched.approver().run()):
        await until(lambda: ANY_NAME in caplog.text)


async def test_that_a_token_was_approved_by_somebody_else_is_told_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """As the controller manager would, were kubeadm's binding there again."""
    async with running(watched.approver().run()):
        await until(lambda: watched.api.watches)
        assert ANY_NAME not in caplog.text
        condition = {"type": "Approved", "reason": "AutoApproved", "message": "by the controller manager"}
        for name in ("csr-1", "csr-2"):
            watched.api.put(
                f"{REQUESTS}/{name}", asked("worker-1", name=name) | {"status": {"conditions": [condition]}}
            )
        watched.ask(name="own")
        await until(lambda: watched.verdict("own"))
    assert caplog.text.count(ANY_NAME) == 1


async def test_that_somebody_else_was_quicker_is_told(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Then a token may have become another node, and nobody can take that back by a denial."""
    condition = {"type": "Approved", "reason": "AutoApproved", "message": "by the controller manager"}

    def quicker(request: ApiRequest) -> None:
        if request.method == "PUT":
            watched.api.faults.clear()
            found = watched.api.objects[f"{REQUESTS}/csr-1"]
            watched.api.put(f"{REQUESTS}/csr-1", found | {"status": {"conditions": [condition]}})

    watched.api.faults.append(quicker)
    async with running(watched.approver().run()):
        await until(lambda: watched.api.watches)
        watched.ask("worker-1")
        await until(lambda: ANY_NAME in caplog.text)
    assert watched.verdict() == "Approved"
    assert watched.audit == []


async def test_stopped_in_the_middle_nothing_of_it_goes_on(watched: Watched) -> None:
    before = asyncio.all_tasks()
    async with running(watched.approver().run()):
        await until(lambda: watched.api.watches)
        watched.api.answering.clear()
        for number in range(2 * DECISIONS_IN_PROGRESS_MAX):
            watched.ask(name=f"csr-{number}")
        await until(lambda: watched.asked_for == DECISIONS_IN_PROGRESS_MAX)
    assert asyncio.all_tasks() == before
    assert watched.asked_for == DECISIONS_IN_PROGRESS_MAX


async def test_an_approver_that_fails_is_begun_anew_and_lists_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main.Backoff, "seconds", lambda _: 0.0)
    watched.failing_once("GET", RuntimeError("a bug"))
    watched.ask()
    async with running(main.run_csr_approver(watched.approver)):
        await until(watched.verdict)
    assert "approving has failed" in caplog.text
