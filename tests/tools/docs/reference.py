"""Reference pages from the declarations: commands and flags, documents, metrics."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from bootbridge.cli.main import COMMAND
from bootbridge.cli.reference.specification import PROGRAMS, CommandSpec, FlagSpec, specifications
from bootbridge.cli.schema import SCHEMAS
from bootbridge.common.documents import json_schema
from bootbridge.metrics import Family, Registry
from bootbridge.runtime.process_metrics import register_process_metrics
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.server_metrics import ServerMetrics

Schema = Mapping[str, Any]


def pages() -> dict[str, str]:
    """Returns the pages by file name."""
    commands = specifications(COMMAND)
    found = {"index.md": index(commands), "documents.md": documents_page(), "metrics.md": metrics_page()}
    for name, command in commands.items():
        if len(command.path) == 1:
            found[f"{name}.md"] = command_page(command, commands)
    return found


def index(commands: Mapping[str, CommandSpec]) -> str:
    """Returns the first page: all commands by section, and the other pages."""
    lines = [
        "# Reference\n",
        "Made from the declarations in the code, by `make docs`. The same without this site: "
        "`bootbridge help COMMAND`, `bootbridge man COMMAND`, `bootbridge schema NAME`, and `/metrics` of a "
        "running program.\n",
        "* [Documents](documents.md): every field of the files that operators write\n"
        "* [Metrics](metrics.md): what the server and the agent count\n",
    ]
    for title, names in commands[""].sections:
        lines.append(f"## {title}\n")
        lines.append("| command | what it does |\n|---|---|")
        lines += [
            f"| [`{_typed(commands[name])}`]({name}.md) | {prose(commands[name].summary)} |" for name in names
        ]
        lines.append("")
    return "\n".join(lines)


# --- commands


def command_page(command: CommandSpec, commands: Mapping[str, CommandSpec]) -> str:
    """Returns the page of a command, with the commands below it."""
    parts = list(_command(command, 1))
    for name in command.commands:
        parts += _command(commands[" ".join((*command.path, name))], 2)
    return "\n".join(parts)


def _typed(command: CommandSpec) -> str:
    programs = {name: program for program, name in PROGRAMS.items()}
    return programs.get(command.name) or " ".join(("bootbridge", *command.path))


def _command(command: CommandSpec, level: int) -> Iterator[str]:
    typed, heading = _typed(command), "#" * level
    yield f"{heading} {typed}\n"
    yield f"```text\n{_synopsis(command, typed)}\n```\n"
    yield from _paragraphs(command.description)
    if command.arguments:
        yield "| argument | meaning |\n|---|---|"
        yield from (f"| `{each.metavar}` | {prose(each.help)} |" for each in command.arguments)
        yield ""
    group = None
    for flag in command.flags:
        if flag.group != group:
            group = flag.group
            title = group[:1].upper() + group[1:] or "Flags"
            yield f"\n**{title}**\n\n| flag | meaning |\n|---|---|"
        yield _flag(flag)
    yield ""
    if command.exit_codes:
        yield "| exit code | meaning |\n|---|---|"
        yield from (f"| {code} | {prose(meaning)} |" for code, meaning in command.exit_codes)
        yield ""
    if examples := textwrap.dedent(command.examples).strip("\n"):
        own = " ".join(("bootbridge", *command.path))
        yield f"**Examples**\n\n```bash\n{examples.replace(own, typed)}\n```\n"


def _synopsis(command: CommandSpec, typed: str) -> str:
    words = [
        typed,
        *(["[flag ...]"] if command.flags else []),
        *(["command ..."] if command.commands else []),
    ]
    for argument in command.arguments:
        shown = argument.metavar + (" ..." if argument.repeats else "")
        words.append(shown if argument.required else f"[{shown}]")
    return " ".join(words)


def _flag(flag: FlagSpec) -> str:
    names = ", ".join(f"`{name}`" for name in flag.names)
    value = f" `{flag.metavar}`" if flag.metavar else ""
    choices = ", ".join(flag.choices)
    text = f"{flag.help} [{choices}]" if choices and choices not in flag.help else flag.help
    return f"| {names}{value} | {prose(text)} |"


def _paragraphs(text: str) -> Iterator[str]:
    """Prose becomes prose; indented lines keep their layout."""
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        at = next((place for place, line in enumerate(lines) if line.startswith("  ")), len(lines))
        if lines[:at]:
            yield prose(" ".join(lines[:at])) + "\n"
        if lines[at:]:
            yield "```text\n" + textwrap.dedent("\n".join(lines[at:])) + "\n```\n"


# --- documents


def documents_page() -> str:
    """Returns the fields of all documents that have a schema."""
    parts = [
        "# Documents\n",
        "`bootbridge schema NAME` prints the same as a JSON schema (draft 2020-12), for editors and CI.\n",
    ]
    for name, (summary, module, declared) in SCHEMAS.items():
        schema = json_schema(getattr(importlib.import_module(f"bootbridge.{module}"), declared))
        parts.append(f"## {name}\n\n{prose(summary[:1].upper() + summary[1:])}.\n")
        parts += _object(schema)
        for title, below in schema.get("$defs", {}).items():
            if "properties" in below:
                parts.append(f"**{title}**\n")
                parts += _object(below)
    return "\n".join(parts)


def _object(schema: Schema) -> Iterator[str]:
    if description := schema.get("description"):
        yield f"{prose(description)}\n"
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        yield f"| `{name}` | {prose(_type(field))} | {default} | {prose(field.get('description', ''))} |"
    yield ""


def _default(field: Schema) -> str:
    default = field.get("default")
    if default in ("", None):
        return ""
    shown = {True: "true", False: "false"}.get(default, default) if isinstance(default, bool) else default
    return f"`{shown}`"


def _type(field: Schema) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(each) for each in field["anyOf"]))
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}"
    if kind == "object" and isinstance(field.get("additionalProperties"), Mapping):
        return f"map to {_type(field['additionalProperties'])}"
    return str(field.get("format", kind))


# --- metrics


def metrics_page() -> str:
    """Returns the metrics of both programs."""
    parts = [
        "# Metrics\n",
        "Served at `/metrics` of the health port, in Prometheus' text format. Names that the Go originals "
        "have too mean the same.\n",
    ]
    for title, declare in (("proxy-server", ServerMetrics), ("proxy-agent", AgentMetrics)):
        registry = Registry()
        declare(registry)
        register_process_metrics(registry)
        parts.append(f"## {title}\n")
        parts += [_metric(family) for family in registry.families()]
        parts.append("")
    return "\n".join(parts)


def _metric(family: Family[Any]) -> str:
    # A list: the names are too long for a column.
    labels = ", ".join(f"`{label}`" for label in family.label_names)
    kind = f"{family.kind} by {labels}" if labels else family.kind
    return f"* `{family.name}`, {kind}: {prose(family.help)}"


def prose(text: str) -> str:
    """Returns a text as Markdown in one line; what is in backquotes stays as it is."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # an unpaired backquote is a character
        return _escaped("`".join(parts)).replace("`", "\\`")
    return "`".join(
        part.replace("|", "\\|") if place % 2 else _escaped(part) for place, part in enumerate(parts)
    )


def _escaped(text: str) -> str:
    # Flags become code, so that they can be recognised and copied.
    escaped = re.sub(r"([\\*_<>\[\]|])", r"\\\1", text)
    return re.sub(r"(?<![\w`-])(--[a-z][a-z0-9-]*(?:=[A-Za-z0-9]+)?)", r"`\1`", escaped)
