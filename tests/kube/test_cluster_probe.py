"""`ClusterClient.probe`: whether the API server answers; one that is restarting counts as unreachable."""

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
    """Maps a request path to the error of the API server; None is success."""
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


def test_a_ready_api_server_is_reachable(cluster: ClusterClient) -> None:
    assert cluster.probe() == ""


def test_403_after_ready_means_restarting(cluster: ClusterClient, answers: Answers) -> None:
    """A restarting API server denies all requests until it has loaded the RBAC roles."""
    cluster.probe()
    answers[READY] = refused(403)
    assert "127.0.0.1:6443" in cluster.probe()
    answers[READY] = None
    assert cluster.probe() == ""


@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_error_before_the_first_ready_counts_as_reachable(
    cluster: ClusterClient, answers: Answers, status: int
) -> None:
    answers[READY] = refused(status)
    assert cluster.probe() == ""


def test_an_api_server_that_denies_everything_is_reachable(cluster: ClusterClient, answers: Answers) -> None:
    answers[READY] = answers[VERSION] = refused(401)
    assert cluster.probe() == ""


def test_a_connection_failure_is_the_reason(cluster: ClusterClient, answers: Answers) -> None:
    answers[READY] = KubeUnreachable("connection refused")
    assert cluster.probe() == "connection refused"


def test_a_removal_does_not_wait_at_the_rate_limit(cluster: ClusterClient) -> None:
    """`down` sends about 42 requests; at the default of 5 per second it would wait for 6 s."""
    assert {cluster._client._limit.reserve(0.0, 10.0) for _ in range(100)} == {0.0}
