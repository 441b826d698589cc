"""``bootbridge schema``: JSON schemas of the documents that operators write, for editors and CI."""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Final

from bootbridge.cli.command import Command, ExitCode
from bootbridge.cli.output import hint_terminal, print_output, result_terminal

# Name → what it describes, and the dataclass that declares it.
SCHEMAS: Final = {
    "node": ("node.yaml, for `bootbridge node run`", "node.configuration", "NodeSettings"),
    "policy": ("policy.yaml, for `bootbridge node init --policy`", "join_api.policy", "OperatorPolicy"),
    "cluster": ("cluster.yaml, for `bootbridge node init --spec`", "join_api.cluster_spec", "ClusterSpec"),
    "instance": ("instance.yaml, for `metadata: {static: …}`", "metadata.static", "InstanceFile"),
    "audit": ("lines of `proxy-server --audit-log`", "proxy_server.audit_trail", "AuditLine"),
    "plan": ("plan.json, written by `up` and `inject`", "bootstrap.plan.record", "PlanRecord"),
}

_DESCRIPTION = """\
Prints the JSON schema (draft 2020-12) of a document, with a description of every field.
Without NAME it lists the documents."""

_EXAMPLES = """
{program} node > node.schema.json
# first line of a node.yaml, for editors with a YAML language server:
# yaml-language-server: $schema=node.schema.json
"""


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", choices=SCHEMAS, help=f"one of: {', '.join(SCHEMAS)}"
    )


def _run(flags: argparse.Namespace) -> int:
    if flags.name is None:
        result_terminal().table([(name, summary) for name, (summary, *_) in SCHEMAS.items()])
        hint_terminal().next_steps([("bootbridge schema node", "print a schema")])
        return ExitCode.OK
    from bootbridge.common.documents import json_schema

    _, module, name = SCHEMAS[flags.name]
    schema = json_schema(getattr(importlib.import_module(f"bootbridge.{module}"), name))
    return print_output(json.dumps(schema, indent=2) + "\n")


COMMAND = Command(
    _run, _DESCRIPTION, _EXAMPLES, _add_flags, exit_codes={ExitCode.ERROR: "no document has that name"}
)
