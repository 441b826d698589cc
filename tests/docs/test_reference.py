"""The reference contains every command, flag, document field and metric that the code declares."""

from __future__ import annotations

import pytest

from bootbridge.cli.main import COMMAND
from bootbridge.cli.reference.specification import specifications
from bootbridge.cli.schema import SCHEMAS
from bootbridge.metrics import Registry
from bootbridge.tunnel.agent_metrics import AgentMetrics
from bootbridge.tunnel.server_metrics import ServerMetrics
from tests.tools.docs.reference import pages, prose

PAGES = pages()
COMMANDS = specifications(COMMAND)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name])
def test_every_command_has_its_flags_arguments_and_examples(name: str) -> None:
    command = COMMANDS[name]
    page = PAGES[f"{command.path[0]}.md"]
    for flag in command.flags:
        assert f"| {', '.join(f'`{each}`' for each in flag.names)}" in page
    for argument in command.arguments:
        assert f"| `{argument.metavar}` |" in page
    assert all(prose(meaning) in page for _, meaning in command.exit_codes)
    assert name in {"server", "agent"} or f"bootbridge {name}" in page


def test_the_index_links_to_every_command() -> None:
    for name in COMMANDS[""].commands:
        assert f"({name}.md)" in PAGES["index.md"]


def test_every_document_has_its_fields() -> None:
    page = PAGES["documents.md"]
    assert [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")] == list(SCHEMAS)
    # One field of each: required, with a default, in a document below.
    assert "| `role` | Role | required | What the instance may become. |" in page
    assert "| `seconds` | number | `10.0` | Time limit of a lookup. |" in page


def test_every_metric_has_its_labels() -> None:
    page = PAGES["metrics.md"]
    for declare in (ServerMetrics, AgentMetrics):
        registry = Registry()
        declare(registry)
        for family in registry.families():
            (line,) = [line for line in page.splitlines() if line.startswith(f"* `{family.name}`, ")]
            assert line.startswith(f"* `{family.name}`, {family.kind}")
            assert line.endswith(f": {prose(family.help)}")
            assert all(f"`{label}`" in line for label in family.label_names)
    assert "* `process_start_time_seconds`, gauge: " in page


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("plain\n  text", "plain text"),
        ("a|b <c> *d* e_f [g]", r"a\|b \<c\> \*d\* e\_f \[g\]"),
        ("see `a_b|c` and d_e", r"see `a_b\|c` and d\_e"),
        ("with --dry-run, and x--y", "with `--dry-run`, and x--y"),
        ("one ` alone --flag", r"one \` alone \`--flag\`"),
    ],
)
def test_texts_of_the_code_are_shown_as_they_are(text: str, markdown: str) -> None:
    assert prose(text) == markdown
