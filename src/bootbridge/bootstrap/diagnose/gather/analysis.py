"""Finds the stage at which a bootstrap failed, from the stage records.

bootkube and release-image append to /var/log/openshift/<service>.json: an array of entries with
`phase` (service, stage, pre-command, post-command; start or end), `stage`, `result` and, on failure,
`errorLine` and `errorMessage`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bootbridge.bootstrap.plan.plan import BootkubeStage

SERVICES = ("release-image", "bootkube")
OUR_STAGES = {
    BootkubeStage.CERTS: "the tunnel's certificates could not be made on the bootstrap node",
    BootkubeStage.SERVER: "the tunnel's server could not be started or does not answer",
    BootkubeStage.AGENT_MANIFEST: "the agents' manifests could not be written",
    BootkubeStage.AGENT_APPLY: "the API server refused the agents' objects, so webhooks were unreachable",
    BootkubeStage.APISERVER_END: "the bootstrap kube-apiserver did not end, so the tunnel was not removed",
    BootkubeStage.CLEANUP: "the tunnel could not be removed completely after the bootstrap",
}
# After a failure of these stages bootkube.sh goes on.
TOLERATED_STAGES = {
    BootkubeStage.SERVER: "the bootstrap goes on without the tunnel, the kube-apiserver dials directly",
    BootkubeStage.AGENT_APPLY: "the receipt has the API server's reason",
    BootkubeStage.APISERVER_END: "bootbridge-cleanup-retry.service removes it later",
    BootkubeStage.CLEANUP: "the receipt lists what remains",
}
OTHER_STAGES = {
    "cb-bootstrap": "the control plane did not come up: cluster-bootstrap gave up waiting for its pods",
    "wait-for-etcd": "etcd on the bootstrap node did not become healthy",
    "kube-apiserver-bootstrap": "the kube-apiserver's manifests could not be rendered",
    "resolve-api-url": "the cluster's API name does not resolve on the bootstrap node",
    "resolve-api-int-url": "the cluster's internal API name does not resolve on the bootstrap node",
    "check-api-url": "the cluster's API does not answer under its name",
    "check-api-int-url": "the cluster's API does not answer under its internal name",
}


@dataclass(frozen=True)
class Analysis:
    sentence: str
    service: str = ""
    stage: str = ""
    error_line: str = ""
    error_message: str = ""
    failed: bool = False
    succeeded: bool = False  # also if a stage failed after which bootkube.sh goes on

    def document(self) -> dict[str, Any]:
        return {
            "version": 1,
            "failed": self.failed,
            "sentence": self.sentence,
            "service": self.service,
            "stage": self.stage,
            "errorLine": self.error_line,
            "errorMessage": self.error_message,
        }

    def text(self) -> str:
        lines = [self.sentence]
        if self.error_line:
            lines.append(f"  at: {self.error_line}")
        lines += [f"  | {line}" for line in self.error_message.splitlines()]
        return "\n".join(lines) + "\n"


def analyse(records: Mapping[str, bytes]) -> Analysis:
    """Returns the first failure; `records` maps service names to their records."""
    if not records:
        return Analysis(
            "There are no stage records: bootkube did not run on this node, or has not started yet."
        )
    for service in (*SERVICES, *sorted(set(records) - set(SERVICES))):
        if service in records:
            found = _of_service(service, _entries(records[service]))
            if found.failed or service == SERVICES[-1]:
                return found
        elif service == SERVICES[-1]:
            return Analysis(f"{service}.service has not started.", service, failed=True)
    return Analysis("All services with a record succeeded.")


def _entries(data: bytes) -> list[dict[str, Any]]:
    try:
        document = json.loads(data)
    except ValueError:
        return []
    return [each for each in document if isinstance(each, dict)] if isinstance(document, list) else []


def _of_service(service: str, entries: list[dict[str, Any]]) -> Analysis:
    if not any(entry.get("phase") == "service start" for entry in entries):
        return Analysis(f"{service}.service has never run, or its record is invalid.", service, failed=True)
    tolerated = [index for index in range(len(entries)) if _is_tolerated(entries, index)]
    rest = [each for index, each in enumerate(entries) if index not in tolerated]
    # A stage whose last attempt succeeded needs no mention; the last failure of each other stage is enough.
    open_failures = {
        entries[index]["stage"]: entries[index]
        for index in tolerated
        if not _started_again(entries, entries[index])
    }
    return _with_tolerated(_of_entries(service, rest), list(open_failures.values()))


def _is_tolerated(entries: list[dict[str, Any]], index: int) -> bool:
    """Whether it is a failed stage after which bootkube.sh went on."""
    entry, later = entries[index], entries[index + 1 :]
    if entry.get("result") != "failure" or entry.get("stage") not in TOLERATED_STAGES:
        return False
    return bool(later) and (later[0].get("result") == "success" or later[0].get("phase") == "stage start")


def _with_tolerated(found: Analysis, failures: list[dict[str, Any]]) -> Analysis:
    for failure in failures:
        stage = BootkubeStage(failure["stage"])
        more = f" Stage {str(stage)!r} failed before: {OUR_STAGES[stage]}; {TOLERATED_STAGES[stage]}."
        message = "\n".join(filter(None, (found.error_message, str(failure.get("errorMessage") or ""))))
        found = replace(found, sentence=found.sentence + more, error_message=message)
    return found


def _of_entries(service: str, entries: list[dict[str, Any]]) -> Analysis:
    last = entries[-1]
    if last.get("phase") in ("service end", "post-command end") and last.get("result") == "success":
        return Analysis(f"{service}.service succeeded.", service, succeeded=True)
    failure = next((each for each in reversed(entries) if each.get("result") == "failure"), None)
    if failure is None or _started_again(entries, failure):
        return _in_progress(service, entries)
    stage = _stage_of(entries, failure)
    return Analysis(
        _sentence(service, stage),
        service,
        stage,
        str(failure.get("errorLine") or ""),
        str(failure.get("errorMessage") or ""),
        failed=True,
    )


def _started_again(entries: list[dict[str, Any]], failure: dict[str, Any]) -> bool:
    """Whether the failed stage succeeded after a restart."""
    later = entries[entries.index(failure) + 1 :]
    stage = _stage_of(entries, failure)
    return bool(stage) and any(
        each.get("phase") == "stage end" and each.get("stage") == stage and each.get("result") == "success"
        for each in later
    )


def _stage_of(entries: list[dict[str, Any]], failure: dict[str, Any]) -> str:
    """Returns the stage of the failing entry; a service's end has none, the stage's end before it has."""
    before = entries[: entries.index(failure) + 1]
    for entry in reversed(before):
        if entry.get("phase") == "service start":
            break
        if entry.get("stage"):
            return str(entry["stage"])
    return ""


def _in_progress(service: str, entries: list[dict[str, Any]]) -> Analysis:
    stage = str(entries[-1].get("stage") or "")
    ended = entries[-1].get("phase") == "stage end"
    at = f" after stage {stage!r}" if ended else f" in stage {stage!r}" if stage else ""
    return Analysis(f"{service}.service is still running{at}, or was stopped there.", service, stage)


def _sentence(service: str, stage: str) -> str:
    known = {**{str(key): text for key, text in OUR_STAGES.items()}, **OTHER_STAGES}
    if not stage:
        return f"{service}.service failed before its first stage."
    meaning = f": {known[stage]}" if stage in known else ""
    return f"{service}.service failed at stage {stage!r}{meaning}."
