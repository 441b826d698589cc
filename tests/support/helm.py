"""The chart, rendered by a real helm (`make peers`)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.process_program import PEERS, ROOT

CHART = ROOT / "deploy" / "helm" / "bootbridge"
HELM = PEERS / "helm"
RELEASE, NAMESPACE = "tunnel", "agents"
SECONDS = 60.0
# What every installation must set.
REQUIRED: dict[str, Any] = {
    "image": {"repository": "registry.example/bootbridge"},
    "servers": {"hosts": ["192.0.2.5"]},
    "authentication": {"certificate": {"secret": "agent-certificate"}},
}

Json = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def missing() -> str:
    """Returns why tests marked `helm` cannot run; empty if they can."""
    return "" if HELM.exists() else f"missing {HELM}: make peers"


def merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> Json:
    """Returns `base` with `values`, which take precedence, as helm merges them."""
    result = dict(base)
    for key, value in values.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if nested else value
    return result


def helm(*words: str, values: Mapping[str, Any] | None = None) -> Done:
    """Runs helm without the settings of this machine's user; the caller checks the result."""
    with tempfile.TemporaryDirectory() as home:
        more: list[str] = []
        if values is not None:
            file = Path(home) / "values.json"
            file.write_text(json.dumps(values))
            more = [f"--values={file}"]
        environment = {"PATH": os.environ["PATH"], "HOME": home}
        argv = [str(HELM), *words, *more]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=SECONDS)


def template(values: Mapping[str, Any], *words: str) -> Done:
    """Runs `helm template` with the required values and these."""
    argv = ("template", RELEASE, str(CHART), f"--namespace={NAMESPACE}", *words)
    return helm(*argv, values=merged(REQUIRED, values))


def objects(values: Mapping[str, Any]) -> dict[str, Json]:
    """Returns the objects of the chart by kind and name: `DaemonSet tunnel-agent`."""
    done = template(values)
    assert done.returncode == 0, done.stderr
    found = [document for document in yaml.safe_load_all(done.stdout) if document]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


def workload(found: Mapping[str, Json]) -> Json:
    """Returns the DaemonSet or Deployment among the objects."""
    return next(each for each in found.values() if each["kind"] in ("DaemonSet", "Deployment"))
