"""Watches the policy's ConfigMap; a valid change applies to the next session.

Evidence is verified against the last inventory snapshot, without I/O. So a new inventory is read before its
policy becomes active: else enrolled machines that call meanwhile would be refused.
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
# A policy waits no longer for its inventory: the change may be meant to exclude a machine.
INVENTORY_SECONDS_MAX: Final = 15.0
INVENTORY_RETRY_SECONDS: Final = 0.5


class PolicyWatch:
    """`run` until cancelled; `wait_for_policy` waits for the first valid policy, `current` is the newest."""

    def __init__(
        self, client: KubeClient, namespace: str, *, rng: random.Random, clock: Callable[[], float]
    ) -> None:
        self._ref = Ref(CONFIG_MAP, POLICY_NAME, namespace)
        self._clock = clock
        self._list_watch = ListWatch(rng)
        self._last_text = ""
        self._active: ActivePolicy | None = None
        self._available = asyncio.Event()
        self._activation: asyncio.Task[None] | None = None
        resource = WatchedResource(CONFIG_MAP, namespace, fields=f"metadata.name={POLICY_NAME}")
        self._reflector = Reflector(client, resource, self._list_watch, self._changed)

    async def run(self) -> None:
        try:
            await self._reflector.run()
        finally:
            if self._activation is not None:
                await cancel_and_wait(self._activation)

    async def wait_for_policy(self) -> ActivePolicy:
        await self._available.wait()
        return self.current()

    def current(self) -> ActivePolicy:
        assert self._active is not None, "wait_for_policy() must return first"
        return self._active

    def _changed(self) -> None:
        found = self._list_watch.objects.get(f"{self._ref.namespace}/{self._ref.name}")
        if found is None:
            self._log_kept(logs.WARNING, "join policy not found", "ConfigMap not found")
            return
        text = _text(found)
        if text != self._last_text:
            self._last_text = text
            self._load(text)

    def _load(self, text: str) -> None:
        previous = self._active
        try:
            new = ActivePolicy.load(text, str(self._ref), self._clock, previous)
        except OperatorError as error:
            self._log_kept(logs.ERROR, "invalid join policy", error)
            return
        if self._activation is not None:
            self._activation.cancel()  # superseded
        if previous is not None and new.inventory is previous.inventory:
            self._activate(new)
        else:
            self._activation = spawn(self._activate_with_inventory(new), "read the new inventory")

    async def _activate_with_inventory(self, new: ActivePolicy) -> None:
        reason = "timed out"
        try:
            async with asyncio.timeout(INVENTORY_SECONDS_MAX):
                while True:
                    try:
                        await new.inventory.snapshot()
                        break
                    except BootbridgeError as error:
                        reason = str(error)
                    await asyncio.sleep(INVENTORY_RETRY_SECONDS)
        except TimeoutError:
            # Until it is available, machines enrolled in it are refused.
            logs.event("join-service", logs.ERROR, "inventory unavailable", policy=self._ref, reason=reason)
        self._activate(new)

    def _activate(self, new: ActivePolicy) -> None:
        self._active = new
        self._available.set()
        logs.event("join-service", logs.INFO, "join policy active", policy=self._ref)

    def _log_kept(self, level: int, message: str, reason: BootbridgeError | str) -> None:
        effect = "the previous policy stays active" if self._active else "no instance can join"
        logs.event("join-service", level, message, policy=self._ref, reason=reason, effect=effect)


def _text(found: Json) -> str:
    text = (found.get("data") or {}).get(POLICY_KEY)
    return text if isinstance(text, str) else ""
