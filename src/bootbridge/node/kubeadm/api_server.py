"""Waits until an API server that was just started is ready."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from bootbridge.common.failures import Transient
from bootbridge.kube.client import KubeClient
from bootbridge.kube.errors import KubeError, KubeUnreachable
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.requests import ApiRequest

READY_SECONDS: Final = 120.0
POLL_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 5.0


class ApiServerNotReady(Transient):
    """The time limit passed; the message contains the last error."""


async def wait_until_ready(kubeconfig: Path, *, seconds: float = READY_SECONDS) -> None:
    """Polls /readyz with the admin kubeconfig, which also proves that its permissions are in effect."""
    client = KubeClient(load_kubeconfig(kubeconfig))
    last = ""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if not (last := await _probe(client)):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        problem = f"API server: not ready after {seconds:g} s"
        raise ApiServerNotReady(f"{problem}: {last}" if last else problem) from None
    finally:
        await client.aclose()


async def _probe(client: KubeClient) -> str:
    """Returns the error; empty if the API server is ready."""
    try:
        await client.text(ApiRequest("GET", "/readyz"), timeout=PROBE_SECONDS)
    except (KubeError, KubeUnreachable) as error:
        return str(error)
    return ""
