"""Follows the policy's ConfigMap: what an operator changes counts for the next session, if it is sound.

Evidence is judged without waiting, by the instances that are known. So another inventory is listed first, and
its policy is in force from then on: else every enrolled machine that calls meanwhile would be refused.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.join_api.policy import POLICY_KEY
from bootbridge.join_service.active_policy import ActivePolicy
from bootbridge.kube.client import KubeClient
from bootbridge.kube.kinds import CONFIG_MAP
from bootbridge.kube.list_watch import ListWatch
from bootbridge.kube.objects import Ref
from bootbridge.kube.reflector import Reflector, WatchedResource
from bootbridge.kube.requests import Json
from bootbridge.runtime import logs
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.runtime.tasks import spawn

POLICY_NAME: Final = "bootbridge-join-policy"
# A policy does not wait longer for its inventory: it may have been changed to keep somebody out.
INVENTORY_SECONDS_MAX: Final = 15.0
INVENTORY_RETRY_SECONDS: Final = 0.5


class PolicyWatch:
    """`run` until cancelled; `first` waits for a policy that works, `current` is the newest such."""

    def __init__(
        self, client: KubeClient, namespace: str, *, rng: random.Random, clock: Callable[[], float]
    ) -> None:
        self._ref = Ref(CONFIG_MAP, POLICY_NAME, namespace)
        self._clock = clock
        self._state = ListWatch(rng)
        self._seen = ""
        self._in_force: ActivePolicy | None = None
        self._there = asyncio.Event()
        self._coming: asyncio.Task[None] | None = None
        resource = WatchedResource(CONFIG_MAP, namespace, fields=f"metadata.name={POLICY_NAME}")
        self._reflector = Reflector(client, resource, self._state, self._changed)

    async def run(self) -> None:
        try:
            await self._reflector.run()
        finally:
            if self._coming is not None:
                await cancel_and_wait(self._coming)

    async def first(self) -> ActivePolicy:
        await self._there.wait()
        return self.current()

    def current(self) -> ActivePolicy:
        assert self._in_force is not None, "asked for the policy before there is one"
        return self._in_force

    def _changed(self) -> None:
        found = self._state.objects.get(f"{self._ref.namespace}/{self._ref.name}")
        if found is None:
            self._tell(logs.WARNING, "the join policy is gone", "it was deleted, or never made")
            return
        text = _text(found)
        if text != self._seen:
            self._seen = text
            self._take(text)

    def _take(self, text: str) -> None:
        before = self._in_force
        try:
            new = ActivePolicy.of(text, str(self._ref), self._clock, before)
        except OperatorError as error:
            self._tell(logs.ERROR, "the new join policy is broken", error)
            return
        if self._coming is not None:
            self._coming.cancel()  # this one is newer
        if before is not None and new.inventory is before.inventory:
            self._put_in_force(new)
        else:
            self._coming = spawn(self._in_force_once_listed(new), "list a new inventory")

    async def _in_force_once_listed(self, new: ActivePolicy) -> None:
        reason = "it does not answer"
        try:
            async with asyncio.timeout(INVENTORY_SECONDS_MAX):
                while True:
                    try:
                        await new.inventory.listed()
                        break
                    except BootbridgeError as error:
                        reason = str(error)
                    await asyncio.sleep(INVENTORY_RETRY_SECONDS)
        except TimeoutError:
            text = "the inventory is not known yet: until it is, machines enrolled in it are refused"
            logs.event("join-service", logs.ERROR, text, policy=self._ref, reason=reason)
        self._put_in_force(new)

    def _put_in_force(self, new: ActivePolicy) -> None:
        self._in_force = new
        self._there.set()
        logs.event("join-service", logs.INFO, "join policy in force", policy=self._ref)

    def _tell(self, level: int, message: str, reason: BootbridgeError | str) -> None:
        stays = "the one before stays in force" if self._in_force else "nobody can join"
        logs.event("join-service", level, f"{message}, {stays}", policy=self._ref, reason=reason)


def _text(found: Json) -> str:
    text = (found.get("data") or {}).get(POLICY_KEY)
    return text if isinstance(text, str) else ""
