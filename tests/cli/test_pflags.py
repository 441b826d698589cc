"""Command lines are parsed as by a Go program that uses pflag."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootbridge.cli.pflags import FLOAT, Flag, FlagSet
from bootbridge.cli.server_flags import FLAGS as SERVER_FLAGS
from bootbridge.errors import OperatorError


@dataclass(frozen=True)
class Settings:
    name: str = "x"
    port: int = 1
    on: bool = False
    off: bool = True
    wait: float = 1.0
    hosts: tuple[str, ...] = ("home",)
    rate: float = 0.0
    v: int = 4


FLAGS = FlagSet(
    Settings,
    (
        ("Things", (Flag("name", "A name."), Flag("port", "A port."), Flag("on", "."), Flag("off", "."))),
        ("More", (Flag("wait", "."), Flag("hosts", "."), Flag("rate", ".", FLOAT))),
        ("Old", (Flag("label", "", into="name", deprecated="use --name instead"),)),
        ("Logs", (Flag("v", ".", shorthand="v"),)),
    ),
)


PARSE_INT = "strconv.ParseInt: parsing"


def parse(*argv: str) -> dict[str, object]:
    return FLAGS.parse(argv).fields


def refusal(*argv: str) -> OperatorError:
    with pytest.raises(OperatorError) as caught:
        FLAGS.parse(argv)
    return caught.value


@pytest.mark.parametrize(
    ("argv", "fields"),
    [
        (["--name=a"], {"name": "a"}),
        (["--name", "a"], {"name": "a"}),
        (["--name="], {"name": ""}),
        (["--name", ""], {"name": ""}),
        (["--name=a=b"], {"name": "a=b"}),
        (["--name", "--port"], {"name": "--port"}),
        (["--port=7"], {"port": 7}),
        (["--port", "-7"], {"port": -7}),
        (["--on"], {"on": True}),
        (["--on=true"], {"on": True}),
        (["--off=false"], {"off": False}),
        (["--off=0"], {"off": False}),
        (["--wait=1h30m"], {"wait": 5400.0}),
        (["--rate", "2.5"], {"rate": 2.5}),
        (["--v=2"], {"v": 2}),
        (["-v", "2"], {"v": 2}),
        (["-v=2"], {"v": 2}),
        (["-v2"], {"v": 2}),
        (["-v", "-1"], {"v": -1}),
        (["--port=1", "--port=2"], {"port": 2}),
        ([], {}),
    ],
)
def test_the_spellings_of_a_flag(argv, fields):
    """With = or beside; a bool alone; -v in all its forms; the last one wins."""
    assert parse(*argv) == fields


def test_a_list_replaces_its_default_then_grows():
    """Commas and repetition mix."""
    assert parse("--hosts=a,b", "--hosts", "c") == {"hosts": ("a", "b", "c")}


def test_a_bool_never_takes_the_next_word():
    """The word is a positional argument, which the command reports."""
    parsed = FLAGS.parse(["--off", "false"])
    assert parsed.fields == {"off": True}
    assert parsed.positionals == ["false"]


def test_two_dashes_end_the_flags():
    """The remaining words are positional arguments."""
    parsed = FLAGS.parse(["--port=2", "--", "--port=3", "-"])
    assert parsed.fields == {"port": 2}
    assert parsed.positionals == ["--port=3", "-"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--foo"], "unknown flag: --foo"),
        (["--foo=1"], "unknown flag: --foo"),
        (["--na_me=1"], "unknown flag: --na_me"),
        (["-x"], "unknown shorthand flag: 'x' in -x"),
        (["-name=a"], "unknown shorthand flag: 'n' in -name=a"),
        (["--name"], "flag needs an argument: --name"),
        (["-v"], "flag needs an argument: 'v' in -v"),
        (["--=x"], "bad flag syntax: --=x"),
        (["---name"], "bad flag syntax: ---name"),
        (["--port=x"], f'invalid argument "x" for "--port" flag: {PARSE_INT} "x": invalid syntax'),
        (["--port="], 'invalid argument "" for "--port" flag: strconv.ParseInt: parsing "": invalid syntax'),
        (["--on=y"], 'invalid argument "y" for "--on" flag: strconv.ParseBool: parsing "y": invalid syntax'),
        (["--wait=5"], 'invalid argument "5" for "--wait" flag: time: missing unit in duration "5"'),
        (["-v=x"], 'invalid argument "x" for "-v, --v" flag: strconv.ParseInt: parsing "x": invalid syntax'),
        (["-v="], 'invalid argument "=" for "-v, --v" flag: strconv.ParseInt: parsing "=": invalid syntax'),
    ],
)
def test_an_invalid_command_line_is_refused_with_the_error_of_pflag(argv, message):
    """Scripts and operators search for these texts."""
    assert refusal(*argv).args[0] == message


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["--hostss=a"], "did you mean --hosts?"),
        (["--na_me"], "did you mean --name?"),
        (["--zzzzzz"], ""),
        (["-port=1"], "long flags take two dashes: --port=1"),
        (["--wait=5"], "write 500ms, 10s or 1h30m"),
        (["--on=yes"], "write =true or =false"),
        (["--port"], "write --port=<value>"),
    ],
)
def test_an_error_has_a_hint_if_the_fix_is_known(argv, hint):
    assert refusal(*argv).hint == hint


def test_a_flag_with_underscores_is_unknown_but_suggested():
    """The original registers dashed names only, klog's too."""
    with pytest.raises(OperatorError, match=r"unknown flag: --log_file \(did you mean --log-file\?\)"):
        SERVER_FLAGS.parse(["--log_file=x"])


def test_a_deprecated_alias_works_with_a_warning():
    """It fills the field of its successor."""
    parsed = FLAGS.parse(["--label=old"])
    assert parsed.fields == {"name": "old"}
    assert parsed.deprecations == ["Flag --label has been deprecated, use --name instead"]


@pytest.mark.parametrize(
    ("argv", "page"),
    [
        (["--help"], "help"),
        (["-h"], "help"),
        (["--version"], "version"),
        (["--on", "--help", "--foo"], "help"),
    ],
)
def test_help_and_version_take_precedence(argv, page):
    """Even over invalid flags after them."""
    assert FLAGS.parse(argv).requested_page == page


WORDS = st.text(max_size=8) | st.sampled_from(["--name", "--port=1", "-v", "--on", "--", "-v=", "--x"])


@given(st.lists(WORDS))
def test_any_command_line_is_parsed_or_refused(argv):
    """No other exception is raised."""
    with contextlib.suppress(OperatorError):
        assert set(FLAGS.parse(argv).fields) <= set(Settings.__dataclass_fields__)
