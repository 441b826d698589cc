"""plan.json: the plan that `up` or `inject` decided, for the commands that come later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from bootbridge.bootstrap.plan.plan import PATHS, Plan
from bootbridge.common import documents
from bootbridge.common.documents import FieldError, checked
from bootbridge.common.files import Tree
from bootbridge.errors import OperatorError

VERSION = 2


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


def dump(plan: Plan) -> bytes:
    """Returns JSON: readable, stable, without secrets, because a plan has none."""
    return (json.dumps(documents.dump(PlanRecord(VERSION, plan)), indent=2) + "\n").encode()


def load(data: bytes, name: str) -> Plan:
    """Returns the plan in a record; `name` is the file in errors."""
    document = documents.parse(data, name)
    record = documents.convert(PlanRecord, document, name)
    # A damaged record must not be filled up with defaults.
    if missing := list(_missing(documents.dump(record), document)):
        raise OperatorError("required field missing", subject=f"{name}: {missing[0]}")
    return record.plan


def find(tree: Tree, name: str) -> Plan:
    """Returns the plan record among the files of a rendered tree; `name` is the subject of errors."""
    for paths in PATHS.values():
        if paths.plan_record in tree:
            return load(tree[paths.plan_record].data, f"{name}: {paths.plan_record}")
    raise OperatorError("plan record missing", subject=name, hint="render or inject it again")


def _missing(whole: dict[str, Any], given: dict[str, Any], place: str = "") -> Iterator[str]:
    for key, value in whole.items():
        if key not in given:
            yield place + key
        elif isinstance(value, dict):
            yield from _missing(value, given[key], f"{place}{key}.")
