"""Many peers and one slow TPM, with virtual time: who waits, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bootbridge.trust.attested import exchange
from bootbridge.trust.attested.channel import HANDSHAKE_SECONDS_MAX
from bootbridge.trust.attested.exchange import ExchangeParameters
from bootbridge.trust.attested.handshake import (
    DEVICE_WAIT_SECONDS_MAX,
    ChannelFailed,
    EvidenceSource,
    handshake_step,
    run_exchange,
)
from bootbridge.trust.evidence import AttestedPeer, EvidenceUnavailable, Requester
from bootbridge.trust.evidence.statement_tree import STATEMENTS_MAX
from bootbridge.trust.evidence.tpm import TpmIssuer, TpmVerifier
from bootbridge.trust.measurement import MeasurementPolicy
from tests.support import deterministic_loop
from tests.support.software_tpm import SlowDevice, SoftwareTpm

SEEDS = range(20)
KEY = b"the session's key"


def binding(number: int) -> bytes:
    return number.to_bytes(32, "big")


def verify(tpm: SoftwareTpm, document: bytes, number: int) -> AttestedPeer | bytes:
    verifier = TpmVerifier(MeasurementPolicy.of({}), trusted_keys=[tpm.identity])
    return verifier.begin(binding(number)).verify_evidence(document)


async def settled() -> None:
    """Until every task waits; virtual time does not pass."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", SEEDS)
def test_peers_that_wait_share_one_quote_and_each_is_in_it(seed: int) -> None:
    async def scenario() -> None:
        device = SlowDevice(SoftwareTpm(), seconds=1.0)
        issuer = device.issuer()
        waiting = [asyncio.ensure_future(issuer.issue(binding(0)))]
        await settled()
        waiting += [asyncio.ensure_future(issuer.issue(binding(number))) for number in range(1, 41)]
        documents = await asyncio.gather(*waiting)
        assert device.uses == 2
        assert asyncio.get_running_loop().time() == 2.0
        for number, document in enumerate(documents):
            peer = verify(device.tpm, document, number)
            assert isinstance(peer, AttestedPeer)
            assert peer.identity == device.tpm.identity

    deterministic_loop.run(scenario(), seed)


def test_a_peer_does_not_wait_for_the_connections_of_another_source() -> None:
    """More statements than fit into one quote: sources take turns."""

    async def scenario() -> None:
        device = SlowDevice(SoftwareTpm(), seconds=1.0)
        issuer = device.issuer()
        flood = [
            asyncio.ensure_future(issuer.issue(binding(number), Requester("192.0.2.1")))
            for number in range(1000)
        ]
        await settled()
        document = await issuer.issue(binding(7777), Requester("192.0.2.2"))
        assert asyncio.get_running_loop().time() == 2.0, "16 quotes for the flood alone"
        assert isinstance(verify(device.tpm, document, 7777), AttestedPeer)
        for each in flood:
            each.cancel()
        await asyncio.wait(flood)
        await asyncio.sleep(2.0)
        assert device.uses <= 3, "work for peers that are gone is dropped"

    deterministic_loop.run(scenario())


def test_a_source_has_at_most_two_quotes_at_once() -> None:
    """The present one and the next. What does not fit is refused at once, and not for other sources."""

    async def scenario() -> None:
        device = SlowDevice(SoftwareTpm(), seconds=1.0)
        issuer = device.issuer()

        def flood(count: int) -> list[asyncio.Future[bytes]]:
            source = Requester("192.0.2.1")
            return [asyncio.ensure_future(issuer.issue(binding(each), source)) for each in range(count)]

        first = flood(1)
        await settled()
        second = flood(3 * STATEMENTS_MAX)
        await settled()
        refused = [each for each in second if each.done()]
        assert len(refused) == 2 * STATEMENTS_MAX
        assert {type(each.exception()) for each in refused} == {EvidenceUnavailable}
        other = asyncio.ensure_future(issuer.issue(binding(7), Requester("192.0.2.2")))
        await asyncio.gather(*first, *(each for each in second if each not in refused), other)
        assert device.uses <= 3, "one more than two, because another source shared the second"
        gone = flood(STATEMENTS_MAX + 1)[1:]
        await settled()
        for each in gone:
            each.cancel()
        await asyncio.wait(gone)
        await issuer.issue(binding(1), Requester("192.0.2.1"))

    deterministic_loop.run(scenario())


def test_challenges_do_not_delay_quotes_by_more_than_one_use() -> None:
    """An answer cannot be shared, and any peer may send a challenge."""

    async def scenario() -> None:
        device = SlowDevice(SoftwareTpm(), seconds=1.0)
        issuer = device.issuer()
        challenges = [
            asyncio.ensure_future(issuer.answer(binding(number), b"", Requester("192.0.2.1")))
            for number in range(50)
        ]
        await settled()
        await issuer.issue(binding(1), Requester("192.0.2.2"))
        assert asyncio.get_running_loop().time() <= 2.0
        with pytest.raises(EvidenceUnavailable):
            await issuer.answer(binding(2), b"", Requester("192.0.2.2"))
        assert asyncio.get_running_loop().time() <= 5.0, "the answer waits for two of the other source"
        for each in challenges:
            each.cancel()
        await asyncio.wait(challenges)
        await asyncio.sleep(2.0)

    deterministic_loop.run(scenario())


def test_a_failed_quote_fails_for_all_that_share_it_and_not_for_the_next() -> None:
    async def scenario() -> None:
        device = SlowDevice(SoftwareTpm(), seconds=1.0)
        issuer, pcrs = device.issuer(), device.tpm.pcrs
        device.tpm.pcrs = {}
        failed = await asyncio.gather(
            *(issuer.issue(binding(each)) for each in range(3)), return_exceptions=True
        )
        assert [type(each) for each in failed] == [KeyError] * 3
        device.tpm.pcrs = pcrs
        assert verify(device.tpm, await issuer.issue(binding(9)), 9)

    deterministic_loop.run(scenario())


class Peers:
    """Connections in memory: a server with this issuer, and clients that require its evidence."""

    def __init__(self, issuer: TpmIssuer, tpm: SoftwareTpm) -> None:
        self.issuer = issuer
        self.verifier = TpmVerifier(MeasurementPolicy.of({}), trusted_keys=[tpm.identity])

    async def attest(self, source: str) -> AttestedPeer | None:
        """Returns what the client finds out about the server; raises ChannelFailed of either side."""
        readers = asyncio.StreamReader(), asyncio.StreamReader()
        server = ExchangeParameters("label", b"s" * 32, KEY, "tpm", (), "the client")
        client = ExchangeParameters("label", b"c" * 32, KEY, "", (self.verifier,), "the server")
        loop = asyncio.get_running_loop()

        async def side(
            steps: exchange.Exchange, issuer: TpmIssuer | None, number: int
        ) -> AttestedPeer | None:
            async with handshake_step("evidence", loop.time() + HANDSHAKE_SECONDS_MAX) as step:
                own = EvidenceSource(issuer, source, step)
                writer: Any = MemoryWriter(readers[1 - number])
                return await run_exchange(steps, own, readers[number], writer)

        results = await asyncio.gather(
            side(exchange.server(server), self.issuer, 0), side(exchange.client(client), None, 1)
        )
        return results[1]


class MemoryWriter:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def write(self, data: bytes) -> None:
        self._reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_source_with_many_connections_does_not_make_another_time_out(seed: int) -> None:
    """32 quotes of 1 s each would take longer than the 30 s of a handshake."""

    async def scenario() -> None:
        device = SlowDevice(SoftwareTpm(), seconds=1.0)
        peers = Peers(device.issuer(), device.tpm)
        flood = [asyncio.ensure_future(peers.attest("192.0.2.1")) for _ in range(32)]
        await settled()
        found = await peers.attest("192.0.2.2")
        assert found is not None
        assert found.identity == device.tpm.identity
        assert asyncio.get_running_loop().time() <= 3.0
        await asyncio.gather(*flood)
        assert device.uses <= 3

    deterministic_loop.run(scenario(), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_deadline_of_a_quote_starts_when_the_chip_starts_on_it(seed: int) -> None:
    """The server's side: the first use takes 20 s, and the second peer's quote as long again."""

    async def scenario() -> None:
        device = SlowDevice(SoftwareTpm(), seconds=20.0)
        issuer = device.issuer()
        loop = asyncio.get_running_loop()

        async def quote(number: int) -> float:
            async with handshake_step("evidence", loop.time() + HANDSHAKE_SECONDS_MAX) as step:
                await issuer.issue(binding(number), Requester(str(number), step.pause, step.resume))
            return loop.time()

        first = asyncio.ensure_future(quote(1))
        await settled()
        assert await quote(2) == 40.0
        assert await first == 20.0

    deterministic_loop.run(scenario(), seed)


def test_a_chip_that_does_not_respond_ends_the_handshake_at_its_deadline() -> None:
    async def scenario() -> None:
        device = SlowDevice(SoftwareTpm(), seconds=1e6)
        issuer = device.issuer()
        loop = asyncio.get_running_loop()
        ended: dict[int, float] = {}

        async def quote(number: int) -> None:
            with pytest.raises(ChannelFailed, match="timed out"):
                async with handshake_step("evidence", loop.time() + HANDSHAKE_SECONDS_MAX) as step:
                    await issuer.issue(binding(number), Requester(str(number), step.pause, step.resume))
            ended[number] = loop.time()

        first = asyncio.ensure_future(quote(1))
        await settled()
        await asyncio.gather(first, quote(2))
        assert ended == {1: HANDSHAKE_SECONDS_MAX, 2: HANDSHAKE_SECONDS_MAX + DEVICE_WAIT_SECONDS_MAX}

    deterministic_loop.run(scenario(), may_leave=True)
