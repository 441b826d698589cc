"""The join service is told of evictions, once each."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bootbridge.join_service.eviction import Evictor
from bootbridge.join_service.eviction_watch import EvictionWatch
from bootbridge.join_service.name_bindings import STATE_NAMESPACE
from bootbridge.kube.client import KubeClient
from bootbridge.kube.kinds import CONFIG_MAP, NODE, POD
from bootbridge.kube.kubeconfig import load_kubeconfig
from bootbridge.kube.objects import Ref
from tests.support.fake_api_server import FakeApiServer

SECONDS = 30.0


@asynccontextmanager
async def client_of(api: FakeApiServer, folder: Path) -> AsyncIterator[KubeClient]:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(api.kubeconfig()))
    client = KubeClient(load_kubeconfig(kubeconfig), qps=-1)
    try:
        yield client
    finally:
        await client.aclose()


def binding(api: FakeApiServer, node: str, identity: str) -> None:
    name = f"bootbridge-node-{node}"
    metadata = {"name": name, "namespace": STATE_NAMESPACE}
    api.put(
        Ref(CONFIG_MAP, name, STATE_NAMESPACE).path, {"metadata": metadata, "data": {"identity": identity}}
    )


def pod(api: FakeApiServer, name: str, node: str) -> str:
    path = Ref(POD, name, "agents").path
    metadata = {"name": name, "namespace": "agents"}
    api.put(path, {"metadata": metadata, "spec": {"nodeName": node}})
    return path


async def test_an_eviction_is_seen_once_and_names_the_identity(tmp_path: Path) -> None:
    """Those before the start of the service too, and one of a name that no identity had is not."""
    async with FakeApiServer(tmp_path) as api, client_of(api, tmp_path) as client:
        evictor = Evictor(client)
        for node in ("old", "new", "kept"):
            binding(api, node, f"tpm:{node}")
        await evictor.evict("old")
        await evictor.evict("never-bound")
        seen: list[str] = []
        changed = asyncio.Event()

        def on_evicted(identity: str) -> None:
            seen.append(identity)
            changed.set()

        watching = asyncio.ensure_future(EvictionWatch(client, on_evicted, rng=random.Random(1)).run())
        async with asyncio.timeout(SECONDS):
            await changed.wait()
            assert seen == ["tpm:old"]
            changed.clear()
            await evictor.evict("new")
            await changed.wait()
        assert seen == ["tpm:old", "tpm:new"]
        watching.cancel()
        await asyncio.wait({watching})


async def test_the_pods_of_an_evicted_node_are_deleted_at_once(tmp_path: Path) -> None:
    """Without a grace period, as no kubelet may confirm it; and after the Node."""
    async with FakeApiServer(tmp_path) as api, client_of(api, tmp_path) as client:
        for name in ("n1", "n2"):
            api.put(Ref(NODE, name).path, {"metadata": {"name": name}})
        gone, kept = pod(api, "a", "n1"), pod(api, "b", "n2")
        dry = await Evictor(client, dry_run=True).evict("n1")
        assert ("Pod", "a", "would be deleted") in [(s.resource, s.name, s.result) for s in dry.steps]
        assert api.exists(gone)
        done = await Evictor(client).evict("n1")
        assert [(s.resource, s.name) for s in done.steps][-2:] == [("Node", "n1"), ("Pod", "a")]
        assert not api.exists(gone)
        assert api.exists(kept)
        (call,) = api.calls_to("DELETE", gone)
        assert call.body["gracePeriodSeconds"] == 0
