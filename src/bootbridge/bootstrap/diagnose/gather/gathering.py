"""Collects all sources and writes the analysis."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bootbridge.bootstrap.diagnose.check.result import at
from bootbridge.bootstrap.diagnose.doctor import Diagnosis, DiagnosisContext
from bootbridge.bootstrap.diagnose.gather import cluster_sources, node_sources, remote
from bootbridge.bootstrap.diagnose.gather.analysis import Analysis, analyse
from bootbridge.bootstrap.diagnose.gather.bundle import BundleSource, LogBundle
from bootbridge.bootstrap.diagnose.gather.remote import Login
from bootbridge.bootstrap.plan.plan import Flavour, Plan
from bootbridge.common.redaction import Redactor
from bootbridge.errors import OperatorError
from bootbridge.kube.blocking_client import ClusterClient

UNREACHED = Analysis("The bootstrap node could not be reached: its stage records are missing.")
USER_SECRETS = ("token", "password", "client-key-data")

Report = Callable[[BundleSource], None]


@dataclass(frozen=True)
class GatherResult:
    bundle: Path
    analysis: Analysis
    diagnosis: Diagnosis | None
    sources: tuple[BundleSource, ...]

    def sentences(self) -> list[str]:
        doctor = self.diagnosis.sentence() if self.diagnosis else ""
        return [text for text in (self.analysis.sentence, doctor) if text]

    def document(self) -> dict[str, Any]:
        return {
            "version": 1,
            "bundle": str(self.bundle),
            "analysis": self.analysis.document(),
            "brokenHop": _broken(self.diagnosis),
            "missing": [
                {"source": each.name, "reason": each.trouble} for each in self.sources if each.trouble
            ],
        }


def of_node(context: DiagnosisContext, path: Path, report: Report = lambda source: None) -> GatherResult:
    """Collects on the bootstrap node itself."""
    plan = context.plan
    redactor = Redactor(known_keys(context.host.root, plan))
    with LogBundle(path, redactor) as bundle:
        diagnosed: list[Diagnosis] = []
        for name, source in node_sources.collectors(context, diagnosed.append).items():
            report(bundle.collect(name, source))
        if context.cluster:
            for name, source in cluster_sources.collectors(context.cluster, plan).items():
                report(bundle.collect(name, source))
        else:
            report(_note(bundle, "cluster", context.no_cluster_because))
        diagnosis = diagnosed[0] if diagnosed else None
        return _finished(bundle, _stages(plan, node_sources.records(context.install)), diagnosis)


def of_bootstrap(
    path: Path,
    plan: Plan,
    addresses: list[str],
    login: Login,
    kubeconfig: Path | None,
    seconds: float,
    report: Report = lambda source: None,
    dialling: Callable[[str], None] = lambda address: None,
) -> GatherResult:
    """Collects from the installer's machine: the node over ssh, the cluster over its API."""
    known = [*([login.key.pem] if login.key else []), *(kubeconfig_secrets(kubeconfig) if kubeconfig else ())]
    records: dict[str, bytes] = {}

    def node(bundle: LogBundle) -> None:
        records.update(remote.collect(bundle, plan, addresses, login, seconds, dialling))

    with LogBundle(path, Redactor(known)) as bundle:
        reached = bundle.collect("bootstrap node", node)
        report(reached)
        if kubeconfig and kubeconfig.exists():
            _with_cluster(bundle, kubeconfig, plan, report)
        if not any(source.files for source in bundle.sources):
            bundle.abandon()
            raise remote.UnreachableNodeError(reached.trouble or "nothing was collected")
        return _finished(bundle, UNREACHED if reached.trouble else analyse(records), None)


def _with_cluster(bundle: LogBundle, kubeconfig: Path, plan: Plan, report: Report) -> None:
    try:
        cluster = ClusterClient.from_kubeconfig(kubeconfig)
    except OperatorError as error:
        report(_note(bundle, "cluster", str(error)))
        return
    try:
        if trouble := cluster.probe():
            report(_note(bundle, "cluster", trouble))
            return
        for name, source in cluster_sources.collectors(cluster, plan).items():
            report(bundle.collect(name, source))
    finally:
        cluster.close()


def known_keys(root: Path, plan: Plan) -> list[bytes]:
    """Returns the keys on this node, which are redacted in all files."""
    folder = root / plan.paths.tls.lstrip("/")
    keys = [path.read_bytes() for path in sorted(folder.glob("*.key"))] if folder.is_dir() else []
    return [*keys, *kubeconfig_secrets(root / plan.paths.kubeconfig.lstrip("/"))]


def kubeconfig_secrets(path: Path) -> list[bytes]:
    """Returns keys, tokens and passwords of a kubeconfig; none if it is invalid."""
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
        return Analysis("kubeadm writes no stage records; see the result of the doctor below.")
    return analyse(records)


def _note(bundle: LogBundle, name: str, trouble: str) -> BundleSource:
    source = BundleSource(name, trouble=trouble or "not available")
    bundle.sources.append(source)
    return source


def _finished(bundle: LogBundle, analysis: Analysis, diagnosis: Diagnosis | None) -> GatherResult:
    gathered = GatherResult(bundle.path, analysis, diagnosis, tuple(bundle.sources))
    document = {**analysis.document(), "brokenHop": _broken(diagnosis)}
    bundle.add("analysis.json", (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    bundle.add("analysis.txt", _text(gathered).encode())
    bundle.finish()
    return gathered


def _broken(diagnosis: Diagnosis | None) -> dict[str, str] | None:
    step = diagnosis.broken if diagnosis else None
    return {"hop": step.hop, "step": step.name, "evidence": step.evidence, "fix": step.fix} if step else None


def _text(gathered: GatherResult) -> str:
    lines = [gathered.analysis.text()]
    if gathered.diagnosis:
        lines.append(gathered.diagnosis.sentence())
        if step := gathered.diagnosis.broken:
            lines.append(f"Fix: {step.fix}")
    lines += [f"Not collected: {each.name}: {each.trouble}" for each in gathered.sources if each.trouble]
    return "\n".join(lines) + "\n"
