"""Server leases: validity, counting, garbage collection and publishing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.errors import OperatorError
from bootbridge.kube.access import ClusterAccess
from bootbridge.kube.client import KubeClient, KubeError, KubeUnreachable
from bootbridge.kube.lease_counter import LeaseCounter
from bootbridge.kube.lease_garbage_collector import LeaseGarbageCollector
from bootbridge.kube.lease_publisher import LeasePublisher
from bootbridge.kube.leases import Lease, LeaseCount, format_time, lease_name, parse_time
from tests.kube.conftest import running, until
from tests.support.fake_api_objects import Call
from tests.support.fake_api_server import LEASES, FakeApiServer, drop, fine, refuse

LABELS = {"k8s-app": "konnectivity-server"}
SELECTOR = "k8s-app=konnectivity-server"


def ago(seconds: float) -> str:
    return format_time(time.time() - seconds)


# Long, because these are made when tests are collected; on a busy machine tests run much later.
DAY = 86_400
VALID = {"leaseDurationSeconds": DAY, "acquireTime": ago(1)}
RENEWED = {"leaseDurationSeconds": DAY, "acquireTime": ago(10 * DAY), "renewTime": ago(1)}
EXPIRED = {"leaseDurationSeconds": DAY, "acquireTime": ago(10 * DAY)}


class TestValidity:
    """Konnectivity's five cases of lease validity, and two that crash it."""

    @pytest.mark.parametrize(
        ("case", "spec", "valid"),
        [
            ("freshly acquired", VALID, True),
            ("freshly renewed", RENEWED, True),
            ("neither acquisition nor renewal time", {"leaseDurationSeconds": DAY}, False),
            ("expired, only acquired", EXPIRED, False),
            ("expired, acquired and renewed", {**EXPIRED, "renewTime": ago(9 * DAY)}, False),
            ("no duration", {"renewTime": ago(1)}, False),
            ("invalid time", {"leaseDurationSeconds": DAY, "renewTime": "yesterday"}, False),
        ],
    )
    def test_validity(self, case: str, spec: dict[str, Any], valid: bool) -> None:
        assert Lease.from_json({"metadata": {"name": "x"}, "spec": spec}).valid(time.time()) is valid

    def test_a_lease_expires_exactly_after_its_duration(self) -> None:
        lease = Lease.from_json({"spec": {"leaseDurationSeconds": 30, "renewTime": format_time(1000.0)}})
        assert lease.valid(1029.999)
        assert not lease.valid(1030.0)

    @pytest.mark.parametrize(
        "text",
        ["2026-01-02T03:04:05.678901Z", "2026-01-02T03:04:05.678901234Z", "2026-01-02T04:04:05.678901+01:00"],
    )
    def test_every_time_format_of_kubernetes_is_parsed(self, text: str) -> None:
        assert parse_time(text) == pytest.approx(1767323045.678901, abs=1e-5)

    @given(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.dictionaries(
            st.sampled_from(["metadata", "spec", "labels", "renewTime", "leaseDurationSeconds"]), inner
        ) | st.lists(inner),
    ))  # fmt: skip
    def test_any_object_is_parsed_without_an_error(self, item: Any) -> None:
        Lease.from_json(item).valid(0.0)

    def test_a_count_has_the_valid_leases_and_the_next_expiry(self) -> None:
        leases = [
            Lease.from_json({"spec": {"leaseDurationSeconds": d, "renewTime": format_time(100)}})
            for d in (5, 20, 30)
        ]
        assert LeaseCount.of(leases, now=110.0) == LeaseCount(2, 120.0)
        assert LeaseCount.of(leases, now=200.0) == LeaseCount(0, None)


class RecordingCounter:
    """A counter that records its callbacks."""

    def __init__(self, client: KubeClient, selector: str = SELECTOR) -> None:
        self.counts: list[int] = []
        self.calls: list[tuple[str, int]] = []
        self.counter = LeaseCounter(
            client,
            "kube-system",
            selector,
            clock=time.time,
            rng=random.Random(1),
            on_count=self.counts.append,
            observe=lambda verb, status, reason, seconds: self.calls.append((verb, status)),
        )


@asynccontextmanager
async def counting(client: KubeClient, selector: str = SELECTOR) -> AsyncIterator[RecordingCounter]:
    recording = RecordingCounter(client, selector)
    async with running(recording.counter.run()):
        yield recording


class TestCounter:
    """Konnectivity's cases of counting leases, over HTTP."""

    @pytest.mark.parametrize(
        ("case", "leases", "count"),
        [
            ("none", [], 1),
            ("none matching", [({"k8s-app": "x"}, VALID), ({"other": "konnectivity-server"}, VALID)], 1),
            ("expired", [(LABELS, EXPIRED), ({"k8s-app": "x"}, VALID)], 1),
            ("only valid counted", [(LABELS, VALID), (LABELS, RENEWED), (LABELS, EXPIRED), ({}, VALID)], 2),
        ],
    )
    async def test_only_valid_leases_that_match_the_selector_are_counted(
        self, api: FakeApiServer, client: KubeClient, case: str, leases: list[Any], count: int
    ) -> None:
        for number, (labels, spec) in enumerate(leases):
            api.put_lease(f"lease-{number}", labels, **spec)
        async with counting(client) as recording:
            await until(lambda: api.watches)
            assert recording.counter.count == count

    async def test_the_count_is_one_until_a_list_succeeds(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.put_lease("a", LABELS, **VALID)
        api.put_lease("b", LABELS, **VALID)
        api.next_faults.append(refuse(500, "InternalError"))
        async with counting(client) as recording:
            await until(lambda: recording.calls)
            assert recording.counter.count == 1
            await until(lambda: recording.counter.count == 2)  # after a retry

    async def test_the_last_count_is_kept_while_the_api_server_fails(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        for name in "abc":
            api.put_lease(name, LABELS, **VALID)
        async with counting(client) as recording:
            await until(lambda: recording.counter.count == 3)
            api.next_faults += [drop] * 3
            api.cut_watches()
            await until(lambda: len(recording.calls) >= 3)
            assert recording.counter.count == 3

    async def test_the_last_count_is_kept_when_no_lease_is_valid(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        for name in "ab":
            api.put_lease(name, LABELS, **VALID)
        async with counting(client) as recording:
            await until(lambda: recording.counter.count == 2)
            api.remove_lease("a")
            await until(lambda: recording.counter.count == 1)
            api.remove_lease("b")
            api.put_lease("c", LABELS, **EXPIRED)
            api.put_lease("d", LABELS, **VALID)
            api.put_lease("e", LABELS, **VALID)
            await until(lambda: recording.counter.count == 2)
        assert recording.counts == [2, 1, 2]

    async def test_an_unreachable_api_server_does_not_delay_the_start(self, free_port: int) -> None:
        """Konnectivity's agent is not healthy until its first list succeeds."""
        client = KubeClient(ClusterAccess("127.0.0.1", free_port))
        recording = RecordingCounter(client)
        async with running(recording.counter.run()) as task:
            assert recording.counter.count == 1
            await until(lambda: recording.calls == [("list", 0)])
            assert not task.done()

    async def test_lease_events_change_the_count_at_once(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        """The counter sends one list and one watch only."""
        async with counting(client) as recording:
            await until(lambda: api.watches)
            api.put_lease("a", LABELS, **VALID)
            api.put_lease("b", LABELS, **VALID)
            await until(lambda: recording.counter.count == 2)
            api.remove_lease("a")
            await until(lambda: recording.counter.count == 1)
        assert len(api.calls) == 2

    async def test_the_selector_is_sent_to_the_api_server(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        async with counting(client):
            await until(lambda: api.watches)
        assert {call.query["labelSelector"] for call in api.calls} == {"k8s-app=konnectivity-server"}

    async def test_the_empty_selector_counts_all_leases(self, api: FakeApiServer, client: KubeClient) -> None:
        api.put_lease("a", {}, **VALID)
        api.put_lease("b", {"x": "y"}, **VALID)
        async with counting(client, "") as recording:
            await until(lambda: recording.counter.count == 2)
        assert "labelSelector" not in api.calls[0].query

    async def test_an_expiry_changes_the_count_without_an_event(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.put_lease("stays", LABELS, **VALID)
        api.put_lease("ends", LABELS, leaseDurationSeconds=3, renewTime=ago(0))
        async with counting(client) as recording:
            await until(lambda: recording.counter.count == 2)
            await until(lambda: recording.counter.count == 1)
            assert not Lease.from_json(api.leases["ends"]).valid(time.time())

    @pytest.mark.parametrize("as_status", [False, True])
    async def test_an_expired_resource_version_leads_to_a_new_list(
        self, api: FakeApiServer, client: KubeClient, as_status: bool
    ) -> None:
        api.gone_as_status = as_status
        async with counting(client) as recording:
            await until(lambda: api.watches)
            api.put_lease("a", LABELS, **VALID)
            await until(lambda: api.leases and recording.counter._state.objects)
            api.put_lease("hidden", {}, **VALID)
            api.forget_history()
            copied = {**api.leases["a"], "metadata": {**api.leases["a"]["metadata"], "name": "b"}}
            api.objects[("leases", "kube-system", "b")] = copied
            api.end_watches()
            await until(lambda: recording.counter.count == 2)
        assert len(api.calls_to("GET", LEASES)) >= 4

    async def test_bookmarks_prevent_a_new_list(self, api: FakeApiServer, client: KubeClient) -> None:
        async with counting(client) as recording:
            await until(lambda: api.watches)
            api.forget_history()
            api.bookmark()
            await until(lambda: recording.counter._state._version == str(api.version))
            api.end_watches()
            await until(lambda: len(recording.calls) == 3)
        assert [verb for verb, _ in recording.calls] == ["list", "watch", "watch"]

    async def test_changes_during_a_lost_connection_are_not_missed(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        async with counting(client) as recording:
            await until(lambda: api.watches)
            api.cut_watches()
            await until(lambda: not api.watches)
            api.put_lease("a", LABELS, **VALID)
            api.put_lease("b", LABELS, **VALID)
            await until(lambda: recording.counter.count == 2)
        assert len(api.calls_to("GET", LEASES)) == 3  # list, watch, watch: no second list

    async def test_watches_are_counted_separately_from_lists(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        """Konnectivity never increments lease_watches_total."""
        api.next_faults += [fine, refuse(403, "Forbidden")]
        async with counting(client) as recording:
            await until(lambda: api.watches)
            await until(lambda: len(recording.calls) == 4)
        assert recording.calls == [("list", 200), ("watch", 403), ("list", 200), ("watch", 200)]

    async def test_a_lease_without_a_duration_is_not_counted(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.put_lease("no-duration", LABELS, renewTime=ago(1))
        api.put_lease("a", LABELS, **VALID)
        api.put_lease("b", LABELS, **VALID)
        async with counting(client) as recording:
            await until(lambda: recording.counter.count == 2)


class TestCollector:
    """Konnectivity's cases of lease garbage collection."""

    def collector(self, client: KubeClient) -> LeaseGarbageCollector:
        self.deleted = 0
        self.calls: list[tuple[str, int, str]] = []

        def count() -> None:
            self.deleted += 1

        return LeaseGarbageCollector(
            client,
            "kube-system",
            SELECTOR,
            clock=time.time,
            observe=lambda verb, status, reason, seconds: self.calls.append((verb, status, reason)),
            on_deleted=count,
        )

    @pytest.mark.parametrize(
        ("case", "labels", "spec"),
        [
            ("valid acquired", LABELS, VALID),
            ("valid renewed", LABELS, RENEWED),
            ("non-matching", {"k8s-app": "x"}, EXPIRED),
        ],
    )
    async def test_valid_leases_and_those_of_others_are_kept(
        self, api: FakeApiServer, client: KubeClient, case: str, labels: dict[str, str], spec: dict[str, Any]
    ) -> None:
        api.put_lease("a", labels, **spec)
        await self.collector(client).collect()
        assert "a" in api.leases
        assert self.deleted == 0

    async def test_expired_leases_that_match_are_deleted(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        for name in "ab":
            api.put_lease(name, LABELS, **EXPIRED)
        api.put_lease("kept", LABELS, **VALID)
        await self.collector(client).collect()
        assert set(api.leases) == {"kept"}
        assert self.deleted == 2
        assert self.calls == [("list", 200, ""), ("delete", 200, ""), ("delete", 200, "")]

    async def test_a_lease_renewed_after_the_list_is_kept(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.put_lease("a", LABELS, **EXPIRED)

        def renew(call: Call) -> None:
            api.put_lease("a", LABELS, **RENEWED)

        api.next_faults += [fine, renew]
        await self.collector(client).collect()
        assert "a" in api.leases
        assert self.calls[-1] == ("delete", 409, "Conflict")
        assert self.deleted == 0

    async def test_a_lease_that_is_already_deleted_is_not_an_error(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.put_lease("a", LABELS, **EXPIRED)
        api.next_faults += [fine, lambda call: api.remove_lease("a")]
        await self.collector(client).collect()
        assert self.calls[-1] == ("delete", 404, "NotFound")
        assert self.deleted == 0

    async def test_a_failed_deletion_does_not_stop_the_others(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        for name in "ab":
            api.put_lease(name, LABELS, **EXPIRED)
        api.next_faults += [fine, refuse(403, "Forbidden")]
        with pytest.raises(KubeError, match="403"):
            await self.collector(client).collect()
        assert len(api.leases) == 1

    async def test_collection_is_repeated_even_after_failures(
        self, api: FakeApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bootbridge.kube.lease_garbage_collector.COLLECT_SECONDS", 0.02)
        api.next_faults += [refuse(500, "InternalError"), drop]
        async with running(self.collector(client).run()):
            await until(lambda: len(api.calls) > 2)
            api.put_lease("a", LABELS, **EXPIRED)
            await until(lambda: not api.leases)


class TestPublisher:
    def publisher(self, client: KubeClient, server_id: str = "s1") -> LeasePublisher:
        return LeasePublisher(client, "kube-system", server_id, LABELS, clock=time.time, rng=random.Random(1))

    async def test_the_lease_has_the_fields_of_konnectivity(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        before = time.time()
        await self.publisher(client).publish()
        stored = api.leases["konnectivity-proxy-server-s1"]
        lease = Lease.from_json(stored)
        assert set(stored["spec"]) == {"holderIdentity", "leaseDurationSeconds", "renewTime"}
        assert (lease.holder, lease.labels, lease.duration) == ("s1", LABELS, 30)
        assert lease.renewed is not None
        assert before - 0.001 <= lease.renewed <= time.time()

    async def test_a_renewal_is_one_request_and_updates_the_renew_time(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        publisher = self.publisher(client)
        await publisher.publish()
        first = api.leases[publisher.ref.name]["spec"]["renewTime"]
        await publisher.publish()
        assert api.leases[publisher.ref.name]["spec"]["renewTime"] > first
        assert [call.method for call in api.calls] == ["GET", "POST", "PUT"]

    async def test_a_lease_of_an_earlier_process_is_renewed(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        api.put_lease("konnectivity-proxy-server-s1", {"note": "kept"}, **EXPIRED)
        publisher = self.publisher(client)
        await publisher.publish()
        lease = Lease.from_json(api.leases[publisher.ref.name])
        assert lease.valid(time.time())
        assert lease.labels == {**LABELS, "note": "kept"}

    @pytest.mark.parametrize("what", ["changed", "deleted"])
    async def test_a_lease_that_was_changed_or_deleted_is_published_again(
        self, api: FakeApiServer, client: KubeClient, what: str
    ) -> None:
        publisher = self.publisher(client)
        await publisher.publish()
        if what == "changed":
            api.put_lease(publisher.ref.name, LABELS, **EXPIRED)
        else:
            api.remove_lease(publisher.ref.name)
        await publisher.publish()
        assert Lease.from_json(api.leases[publisher.ref.name]).valid(time.time())

    async def test_a_lease_is_published_without_token_authentication(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        """Konnectivity panics with leases but without token authentication."""
        async with running(self.publisher(client).run()):
            await until(lambda: api.leases)

    async def test_failures_are_retried(self, api: FakeApiServer, client: KubeClient) -> None:
        api.next_faults += [refuse(500, "InternalError"), drop]
        async with running(self.publisher(client).run()):
            await until(lambda: api.leases)

    def test_a_lease_is_renewed_every_fifteen_seconds_with_four_percent_jitter(self) -> None:
        publisher = self.publisher(KubeClient(ClusterAccess("h", 1)))
        delays = [publisher.delay(0) for _ in range(200)]
        assert all(15 <= delay <= 15.6 for delay in delays)
        assert max(delays) - min(delays) > 0.4

    def test_retry_delays_grow_from_a_fifth_of_a_second_to_seven(self) -> None:
        publisher = self.publisher(KubeClient(ClusterAccess("h", 1)))
        assert 0.1 <= publisher.delay(1) <= 0.2
        assert all(3.5 <= publisher.delay(failures) <= 7 for failures in (7, 50, 10_000))

    async def test_a_lease_is_deleted_at_shutdown(self, api: FakeApiServer, client: KubeClient) -> None:
        publisher = self.publisher(client)
        async with running(publisher.run()):
            await until(lambda: api.leases)
        await publisher.withdraw()
        assert not api.leases

    async def test_a_lease_whose_response_was_lost_is_deleted_too(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        publisher = self.publisher(client)

        def store_and_drop(call: Call) -> None:
            api.answer(call)
            drop(call)

        api.cut_idle_connections()
        api.next_faults += [fine, store_and_drop, drop]
        with pytest.raises((KubeUnreachable, KubeError)):
            await publisher.publish()
        assert api.leases
        await publisher.withdraw()
        assert not api.leases

    async def test_a_lease_renewed_by_another_process_is_not_deleted(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        old, new = self.publisher(client), self.publisher(client)
        await old.publish()
        await new.publish()
        await old.withdraw()
        assert api.leases

    async def test_withdrawing_without_a_lease_sends_no_request(
        self, api: FakeApiServer, client: KubeClient
    ) -> None:
        await self.publisher(client).withdraw()
        assert not api.calls

    async def test_shutdown_does_not_wait_for_a_silent_api_server(
        self,
        api: FakeApiServer,
        client: KubeClient,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("bootbridge.kube.lease_publisher.WITHDRAW_SECONDS_MAX", 0.05)
        publisher = self.publisher(client)
        await publisher.publish()
        api.answering.clear()
        async with asyncio.timeout(2):
            await publisher.withdraw()
        assert "deleting own lease failed, it remains until it expires" in caplog.text
        api.answering.set()

    @pytest.mark.parametrize("server_id", ["Server_1", "a" * 300, "x/y", "é"])
    def test_a_server_id_that_is_not_a_valid_lease_name_is_rejected(self, server_id: str) -> None:
        with pytest.raises(OperatorError, match="--server-id"):
            lease_name(server_id)
