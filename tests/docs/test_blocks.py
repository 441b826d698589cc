"""Code blocks that are marked as runnable do what the documents say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ignition_documents import compact, document
from tests.support.not_run import not_run
from tests.tools.docs.blocks import Block, MarkerError, Place, Session, sessions
from tests.tools.docs.markdown import ROOT, documents
from tests.tools.docs.run_blocks import BlockFailed, matches, missing, run

SESSIONS = [session for path in documents() for session in sessions(path)]
# Files that the reader of a session has from another program, by its name.
GIVEN = {"how-to.md: openshift": {"install/bootstrap.ign": compact(document())}}
ALONE = [session for session in SESSIONS if session.place is Place.ALONE]


def need_a_namespace() -> None:
    if reason := missing(Place.ALONE):
        not_run(reason)


@pytest.mark.parametrize("session", ALONE, ids=str)
def test_blocks_do_what_the_document_says(session: Session, tmp_path: Path) -> None:
    need_a_namespace()
    run(session, tmp_path, given=GIVEN.get(str(session)))


def test_the_readme_and_the_tutorial_have_runnable_blocks() -> None:
    """The test above and the one of the end-to-end tests have something to run."""
    assert {(session.document, session.place) for session in SESSIONS} >= {
        (ROOT / "README.md", Place.ALONE),
        (ROOT / "docs/tutorial.md", Place.LAB),
    }


DOCUMENT = """
<!-- run: one -->

    echo hello
    value=kept

<!-- output -->

    hello

Text in between.

<!-- run: one, exit 3 -->

```bash
echo $value >&2; sh -c 'exit 3'
```

<!-- output: stderr -->

    kept

<!-- run: two -->

    true
"""


def written(text: str, folder: Path) -> Path:
    path = folder / "page.md"
    path.write_text(text)
    return path


def test_blocks_of_one_name_are_one_session_with_their_outputs(tmp_path: Path) -> None:
    one, two = sessions(written(DOCUMENT, tmp_path), tmp_path)
    assert [(block.script, block.exit_code, block.stdout, block.stderr) for block in one.blocks] == [
        ("echo hello\nvalue=kept\n", 0, "hello\n", None),
        ("echo $value >&2; sh -c 'exit 3'\n", 3, None, "kept\n"),
    ]
    assert [block.script for block in two.blocks] == ["true\n"]
    need_a_namespace()
    (tmp_path / "run").mkdir()
    run(one, tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- run: -->\n\n    true\n", "unknown marker"),
        ("<!-- output: both -->\n\n    true\n", "unknown marker"),
        ("<!-- run: a -->\n\nText.\n\n# Heading\n", "no code block"),
        ("<!-- run: a -->\n", "no code block"),
        ("<!-- output -->\n\n    a\n", "without a block"),
        ("<!-- run: a -->\n\n    b\n\n<!-- run in the lab: a -->\n\n    c\n", "two places"),
        (
            "<!-- run: a -->\n\n    b\n\n<!-- output -->\n\n    c\n\n<!-- output -->\n\n    c\n",
            "second output",
        ),
    ],
)
def test_a_marker_that_marks_nothing_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    """A misspelled marker must not leave its block out."""
    with pytest.raises(MarkerError, match=problem):
        sessions(written(text, tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        ([Block(1, "echo one", stdout="two")], "stdout differs\n(?s:.*)-two\n\\+one"),
        ([Block(1, "echo one >&2", stderr="two")], "stderr differs"),
        ([Block(1, "echo one", stdout="")], "stdout differs"),
        ([Block(1, "false")], "exit code 1, expected 0; failed: false"),
        ([Block(1, "false\ntrue")], "failed: false"),
        ([Block(1, "true", 1)], "exit code 0, expected 1"),
        ([Block(1, "false\nsh -c 'exit 2'", 2)], "exit code 2, expected 2; failed: false\nsh -c 'exit 2'"),
        ([Block(1, "exit 0")], "exit code unknown"),
        ([Block(1, "echo 'unfinished")], "exit code"),
        (
            [Block(1, "cd /; value=1"), Block(2, "echo $PWD $value", stdout="/ 2")],
            "page.md:2: stdout differs",
        ),
    ],
)
def test_a_block_that_does_something_else_fails(tmp_path: Path, blocks: list[Block], problem: str) -> None:
    need_a_namespace()
    with pytest.raises(BlockFailed, match=problem):
        run(Session(Path("page.md"), "test", Place.ALONE, blocks), tmp_path)


def test_a_function_that_fails_is_one_failed_command(tmp_path: Path) -> None:
    """Its own last command is not counted in addition."""
    need_a_namespace()
    blocks = [Block(1, "ask() { sh -c 'exit 4'; }"), Block(2, "ask", 4)]
    run(Session(Path("page.md"), "test", Place.ALONE, blocks), tmp_path)


def test_processes_of_a_session_end_with_it(tmp_path: Path) -> None:
    """A background process that a block has left does not outlive the test, and does not block it."""
    need_a_namespace()
    script = "python3 -c 'import signal; signal.pause()' & echo started"
    run(Session(Path("page.md"), "test", Place.ALONE, [Block(1, script, stdout="started")]), tmp_path)


@pytest.mark.parametrize(
    ("expected", "actual", "equal"),
    [
        ("one\ntwo\n", "one  \ntwo", True),
        ("one\ntwo\n", "one\n", False),
        ("took … s", "took 3.5 s", True),
        ("took … s", "took 3.5 minutes", False),
        ("first\n…\nlast", "first\nlast", True),
        ("first\n…\nlast", "first\na\nb\nlast", True),
        ("first\n…\nlast", "first\na\nb", False),
        ("a.c", "abc", False),
        ("…", "", True),
    ],
)
def test_variable_parts_of_an_output(expected: str, actual: str, equal: bool) -> None:
    assert matches(expected, actual) is equal
