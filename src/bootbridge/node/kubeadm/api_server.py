"""Waits until an API server that was just started is ready to be used."""

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
    """It did not answer well in time; the text says what it answered last."""


async def wait_until_ready(kubeconfig: Path, *, seconds: float = READY_SECONDS) -> None:
    """Ready by its own word, asked with the administrator's rights: so these are in force, too."""
    client = KubeClient(load_kubeconfig(kubeconfig))
    last = ""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if not (last := await _trouble(client)):
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        said = f"the API server is not ready after {seconds:g} s"
        raise ApiServerNotReady(f"{said}: {last}" if last else said) from None
    finally:
        await client.aclose()


async def _trouble(client: KubeClient) -> str:
    try:
        await client.text(ApiRequest("GET", "/readyz"), timeout=PROBE_SECONDS)
    except (KubeError, KubeUnreachable) as error:
        return str(error)
    return ""
