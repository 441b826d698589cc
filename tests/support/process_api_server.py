"""The API server stand-in of `tests/kube`, on a thread of its own, for programs that run beside the test."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kube.api_server import ApiServer

CREDENTIAL = "server-side-credential"


class ApiThread:
    """A running `ApiServer` and a kubeconfig that leads to it."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.api = self._run(self._start(folder))
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._document()))

    async def _start(self, folder: Path) -> ApiServer:
        return await ApiServer(folder, bearer_tokens={CREDENTIAL}).__aenter__()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def do(self, action: Callable[[], Any]) -> Any:
        """Run it on the API server's own thread."""

        async def act() -> Any:
            return action()

        return self._run(act())

    def _document(self) -> dict[str, Any]:
        authority = base64.b64encode(self.api.authority.cert_pem).decode()
        cluster = {"server": f"https://127.0.0.1:{self.api.port}", "certificate-authority-data": authority}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": CREDENTIAL}}],
        }

    def stop_listening(self) -> None:
        self._run(self.api.stop())

    def close(self) -> None:
        self.stop_listening()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
