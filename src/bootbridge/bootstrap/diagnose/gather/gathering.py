"""The whole of it: every source in turn, then what they say together."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bootbridge.bootstrap.diagnose.check.finding import at
from bootbridge.bootstrap.diagnose.doctor import Examination, Way
from bootbridge.bootstrap.diagnose.gather import cluster_sources, node_sources, remote
from bootbridge.bootstrap.diagnose.gather.analysis import Analysis, analyse
from bootbridge.bootstrap.diagnose.gather.bundle import Bundle, Source
from bootbridge.bootstrap.diagnose.gather.remote import Login
from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.common.redaction import Redactor
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient

UNREACHED = Analysis("The bootstrap node could not be reached: its stage records are not here.")
USER_SECRETS = ("token", "password", "client-key-data")

Tell = Callable[[Source], None]


@dataclass(frozen=True)
class Gathered:
    bundle: Path
    analysis: Analysis
    examination: Examination | None
    sources: tuple[Source, ...]

    def sentences(self) -> list[str]:
        doctor = self.examination.sentence() if self.examination else ""
        return [text for text in (self.analysis.sentence, doctor) if text]

    def document(self) -> dict[str, Any]:
        return {
            "version": 1,
            "bundle": str(self.bundle),
            "analysis": self.analysis.document(),
            "brokenHop": _broken(self.examination),
            "missing": [{"source": each.name, "why": each.trouble} for each in self.sources if each.trouble],
        }


def of_node(way: Way, path: Path, tell: Tell = lambda source: None) -> Gathered:
    """On the bootstrap node itself."""
    site, plan = way.site, way.site.plan
    redactor = Redactor(known_keys(site.host.root, plan))
    with Bundle(path, redactor) as bundle:
        examined: list[Examination] = []
        for name, source in node_sources.collectors(way, examined.append).items():
            tell(bundle.collect(name, source))
        if way.cluster:
            for name, source in cluster_sources.collectors(way.cluster, plan).items():
                tell(bundle.collect(name, source))
        else:
            tell(_note(bundle, "cluster", way.no_cluster_because))
        examination = examined[0] if examined else None
        return _finished(bundle, _stages(plan, node_sources.records(site)), examination)


def of_bootstrap(
    path: Path,
    plan: Plan,
    addresses: list[str],
    login: Login,
    kubeconfig: Path | None,
    seconds: float,
    tell: Tell = lambda source: None,
    dialling: Callable[[str], None] = lambda address: None,
) -> Gathered:
    """From the installer's side: the node over ssh, the cluster over its API if that answers."""
    known = [*([login.key.pem] if login.key else []), *(kubeconfig_secrets(kubeconfig) if kubeconfig else ())]
    records: dict[str, bytes] = {}

    def node(bundle: Bundle) -> None:
        records.update(remote.collect(bundle, plan, addresses, login, seconds, dialling))

    with Bundle(path, Redactor(known)) as bundle:
        reached = bundle.collect("bootstrap node", node)
        tell(reached)
        if kubeconfig and kubeconfig.exists():
            _with_cluster(bundle, kubeconfig, plan, tell)
        if not any(source.files for source in bundle.sources):
            bundle.abandon()
            raise remote.UnreachableNodeError(reached.trouble or "nothing could be collected")
        return _finished(bundle, UNREACHED if reached.trouble else analyse(records), None)


def _with_cluster(bundle: Bundle, kubeconfig: Path, plan: Plan, tell: Tell) -> None:
    try:
        cluster = ClusterClient.from_kubeconfig(kubeconfig)
    except OperatorError as error:
        tell(_note(bundle, "cluster", str(error)))
        return
    try:
        if trouble := cluster.probe():
            tell(_note(bundle, "cluster", trouble))
            return
        for name, source in cluster_sources.collectors(cluster, plan).items():
            tell(bundle.collect(name, source))
    finally:
        cluster.close()


def known_keys(root: Path, plan: Plan) -> list[bytes]:
    """The keys that lie on this node: looked for in all that goes out."""
    folder = root / plan.paths.tls.lstrip("/")
    keys = [path.read_bytes() for path in sorted(folder.glob("*.key"))] if folder.is_dir() else []
    return [*keys, *kubeconfig_secrets(root / plan.paths.kubeconfig.lstrip("/"))]


def kubeconfig_secrets(path: Path) -> list[bytes]:
    """The keys, tokens and passwords in a kubeconfig; none if it cannot be read."""
    try:
        users = at(yaml.safe_load(path.read_bytes()), "users")
    except (OSError, yaml.YAMLError, ValueError):
        return []
    held = [at(each, "user") for each in users] if isinstance(users, list) else []
    texts = [str(at(user, field)).encode() for user in held for field in USER_SECRETS if at(user, field)]
    keys = [at(user, "client-key-data") for user in held]
    return [*texts, *(base64.b64decode(f"{key}==") for key in keys if key)]


def _stages(plan: Plan, records: Mapping[str, bytes]) -> Analysis:
    if plan.flavour is Flavour.KUBEADM and not records:
        return Analysis("kubeadm keeps no stage records; what the doctor found stands below.")
    return analyse(records)


def _note(bundle: Bundle, name: str, trouble: str) -> Source:
    source = Source(name, trouble=trouble or "there is none")
    bundle.sources.append(source)
    return source


def _finished(bundle: Bundle, analysis: Analysis, examination: Examination | None) -> Gathered:
    gathered = Gathered(bundle.path, analysis, examination, tuple(bundle.sources))
    document = {**analysis.document(), "brokenHop": _broken(examination)}
    bundle.add("analysis.json", (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    bundle.add("analysis.txt", _text(gathered).encode())
    bundle.finish()
    return gathered


def _broken(examination: Examination | None) -> dict[str, str] | None:
    step = examination.broken if examination else None
    return {"hop": step.hop, "step": step.name, "evidence": step.evidence, "fix": step.fix} if step else None


def _text(gathered: Gathered) -> str:
    lines = [gathered.analysis.text()]
    if gathered.examination:
        lines.append(gathered.examination.sentence())
        if step := gathered.examination.broken:
            lines.append(f"Fix: {step.fix}")
    lines += [f"Not collected: {each.name}: {each.trouble}" for each in gathered.sources if each.trouble]
    return "\n".join(lines) + "\n"
