"""plan.json: the plan that `up`, `inject` or `render` decided, for the commands that come later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from bootbridge.bootstrap.plan.paths import PERMANENT_PATHS
from bootbridge.bootstrap.plan.permanent import PermanentPlan
from bootbridge.bootstrap.plan.plan import PATHS, Plan
from bootbridge.common import documents
from bootbridge.common.documents import FieldError, checked
from bootbridge.common.files import Tree
from bootbridge.errors import OperatorError

VERSION = 2

Record = TypeVar("Record")


def _known(version: int) -> int:
    if version != VERSION:
        raise FieldError(f"unknown version {version}", hint="use the bootbridge that wrote it")
    return version


@dataclass(frozen=True)
class PlanRecord:
    __pydantic_config__ = documents.CONFIG

    version: Annotated[int, checked(_known)]
    """Version of this format."""
    plan: Plan
    """All decisions about one tunnel."""


@dataclass(frozen=True)
class PermanentPlanRecord:
    __pydantic_config__ = documents.CONFIG

    version: Annotated[int, checked(_known)]
    """Version of this format."""
    permanent: PermanentPlan
    """All decisions about permanent servers."""


def dump(plan: Plan | PermanentPlan) -> bytes:
    """Returns JSON: readable, stable, without secrets, because a plan has none."""
    record = PlanRecord(VERSION, plan) if isinstance(plan, Plan) else PermanentPlanRecord(VERSION, plan)
    return (json.dumps(documents.dump(record), indent=2) + "\n").encode()


def load(data: bytes, name: str) -> Plan:
    """Returns the plan in a record; `name` is the file in errors."""
    return _load(PlanRecord, data, name).plan


def load_permanent(data: bytes, name: str) -> PermanentPlan:
    return _load(PermanentPlanRecord, data, name).permanent


def _load(kind: type[Record], data: bytes, name: str) -> Record:
    document = documents.parse(data, name)
    record = documents.convert(kind, document, name)
    # A damaged record must not be filled up with defaults.
    if missing := list(_missing(documents.dump(record), document)):
        raise OperatorError("required field missing", subject=f"{name}: {missing[0]}")
    return record


def find(tree: Tree, name: str) -> Plan:
    """Returns the plan record among the files of a rendered tree; `name` is the subject of errors."""
    for paths in PATHS.values():
        if paths.plan_record in tree:
            return load(tree[paths.plan_record].data, f"{name}: {paths.plan_record}")
    if PERMANENT_PATHS.plan_record in tree:
        hint = "render them without --permanent"
        raise OperatorError("files of permanent servers, not of a bootstrap", subject=name, hint=hint)
    raise OperatorError("plan record missing", subject=name, hint="render or inject it again")


def find_permanent(tree: Tree, name: str) -> PermanentPlan | None:
    """Returns the plan of permanent servers; None if the tree is that of a bootstrap."""
    path = PERMANENT_PATHS.plan_record
    return load_permanent(tree[path].data, f"{name}: {path}") if path in tree else None


def _missing(whole: dict[str, Any], given: dict[str, Any], place: str = "") -> Iterator[str]:
    for key, value in whole.items():
        if key not in given:
            yield place + key
        elif isinstance(value, dict):
            yield from _missing(value, given[key], f"{place}{key}.")
