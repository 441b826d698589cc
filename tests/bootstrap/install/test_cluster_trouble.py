"""Is the API server there? One that is starting again says yes too early, and is not believed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.blocking_client import READY, VERSION, ClusterClient
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.requests import ApiRequest

Answers = dict[str, Exception | None]


@pytest.fixture
def answers() -> Answers:
    """What the API server says to which question; None is yes."""
    return {READY: None, VERSION: None}


@pytest.fixture
def cluster(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterClient]:
    async def text(client: KubeClient, request: ApiRequest, *, timeout: float) -> bytes:  # noqa: ASYNC109
        if (error := answers[request.path]) is not None:
            raise error
        return b"ok"

    monkeypatch.setattr(KubeClient, "text", text)
    cluster = ClusterClient(ClusterAccess("127.0.0.1", 6443))
    yield cluster
    cluster.close()


def refused(status: int) -> KubeError:
    return KubeError(status, "", "no", 0.0)


def test_one_that_is_ready_is_there(cluster: ClusterClient) -> None:
    assert cluster.probe() == ""


def test_one_that_was_ready_and_does_not_know_its_roles_any_more_is_starting(
    cluster: ClusterClient, answers: Answers
) -> None:
    """Its first answers are refusals, to everybody whose rights come from a role."""
    cluster.probe()
    answers[READY] = refused(403)
    assert "127.0.0.1:6443" in cluster.probe()
    answers[READY] = None
    assert cluster.probe() == ""


@pytest.mark.parametrize("status", [403, 404, 500])
def test_one_that_never_said_it_was_ready_is_there_if_it_answers(
    cluster: ClusterClient, answers: Answers, status: int
) -> None:
    answers[READY] = refused(status)
    assert cluster.probe() == ""


def test_one_that_refuses_everything_is_there_all_the_same(cluster: ClusterClient, answers: Answers) -> None:
    answers[READY] = answers[VERSION] = refused(401)
    assert cluster.probe() == ""


def test_one_that_cannot_be_reached_is_not(cluster: ClusterClient, answers: Answers) -> None:
    answers[READY] = KubeUnreachable("nobody listens")
    assert cluster.probe() == "nobody listens"
