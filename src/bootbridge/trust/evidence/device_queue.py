"""Shares one slow device, a TPM, between all peers that wait for evidence.

Statements that wait are signed together: while the device works on one quote, all further statements are
collected for the next. A source has at most two quotes at once, the present one and the next: once its
statements fill the next quote, further ones are refused. Answers to challenges cannot be shared: sources
take turns, and after each answer comes a quote, if a statement waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from bootbridge.runtime import tasks
from bootbridge.trust.evidence import EvidenceUnavailable, Requester

T = TypeVar("T")
WorkT = TypeVar("WorkT")

# Signs several statements; returns one document for each, in the same order.
SignTogether = Callable[[Sequence[bytes]], Awaitable[Sequence[bytes]]]


@dataclass(eq=False)
class _Waiting(Generic[WorkT]):
    work: WorkT
    requester: Requester
    result: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Turns(Generic[WorkT]):
    """Waiting work by source; sources take turns."""

    def __init__(self) -> None:
        self._by_source: dict[str, deque[_Waiting[WorkT]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_source)

    def count(self, source: str) -> int:
        """Returns how much work of the source waits, without that whose requester gave up."""
        return sum(not each.result.done() for each in self._by_source.get(source, ()))

    def add(self, waiting: _Waiting[WorkT]) -> None:
        self._by_source.setdefault(waiting.requester.source, deque()).append(waiting)

    def take(self, at_most: int) -> list[_Waiting[WorkT]]:
        """Removes what is due next; work whose requester gave up is dropped."""
        taken: list[_Waiting[WorkT]] = []
        while self._by_source and len(taken) < at_most:
            source = next(iter(self._by_source))
            waiting = self._by_source.pop(source)
            next_one = waiting.popleft()
            if waiting:
                self._by_source[source] = waiting  # at the end: the other sources come first
            if not next_one.result.done():
                taken.append(next_one)
        return taken


class DeviceQueue:
    """May be shared between tasks of one event loop."""

    def __init__(self, sign: SignTogether, statements_max: int) -> None:
        self._sign = sign
        self._statements_max: Final = statements_max
        self._statements: _Turns[bytes] = _Turns()
        self._answers: _Turns[Callable[[], Awaitable[bytes]]] = _Turns()
        self._running: asyncio.Task[None] | None = None

    async def sign(self, statement: bytes, requester: Requester) -> bytes:
        """Returns this statement's document; raises what the device raised.

        Raises EvidenceUnavailable if the source's statements already fill the next quote.
        """
        # An empty source is this program itself.
        if requester.source and self._statements.count(requester.source) >= self._statements_max:
            raise EvidenceUnavailable("too many connections of this source wait for a quote (retry later)")
        return await self._wait_in(self._statements, _Waiting(statement, requester))

    async def answer(self, work: Callable[[], Awaitable[bytes]], requester: Requester) -> bytes:
        """Runs `work` when its turn comes."""
        return await self._wait_in(self._answers, _Waiting(work, requester))

    async def _wait_in(self, turns: _Turns[WorkT], waiting: _Waiting[WorkT]) -> bytes:
        turns.add(waiting)
        waiting.requester.waiting()
        if self._running is None or self._running.done():
            self._running = tasks.spawn(self._run(), "evidence: device queue")
        return await waiting.result

    async def _run(self) -> None:
        while self._statements or self._answers:
            if signed := self._statements.take(self._statements_max):
                await self._finish(signed, self._sign_all)
            if answered := self._answers.take(1):
                await self._finish(answered, self._answer_one)

    async def _finish(
        self,
        present: list[_Waiting[Any]],
        use: Callable[[list[_Waiting[Any]]], Awaitable[Sequence[bytes]]],
    ) -> None:
        for each in present:
            each.requester.started()
        try:
            documents = await use(present)
        except BaseException as error:
            _fail(present, error)
            if not isinstance(error, Exception):
                raise
            return
        for each, document in zip(present, documents, strict=True):
            if not each.result.done():
                each.result.set_result(document)

    async def _sign_all(self, present: list[_Waiting[bytes]]) -> Sequence[bytes]:
        return await self._sign([each.work for each in present])

    async def _answer_one(self, present: list[_Waiting[Callable[[], Awaitable[bytes]]]]) -> Sequence[bytes]:
        return [await each.work() for each in present]


def _fail(present: list[_Waiting[Any]], error: BaseException) -> None:
    for each in present:
        if each.result.done():
            continue
        if isinstance(error, Exception):
            each.result.set_exception(error)
        else:
            each.result.cancel()
