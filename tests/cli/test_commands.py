"""The command line: exit codes, one-line errors, help, version."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import pty
import re
import ssl
import subprocess
import sys
import termios
import types

import pytest

from bootbridge import __version__, installation
from bootbridge.cli import agent, agent_flags, help_page, main, server, server_flags
from bootbridge.cli.command import Command, CommandGroup, ExitCode, LazyCommand, run_guarded
from bootbridge.errors import OperatorError

COMMANDS = [
    ("proxy-server", server.main, server_flags),
    ("proxy-agent", agent.main, agent_flags),
]

UPSTREAM_LOGGING = [
    "--logtostderr=true",
    "--log-file=",
    "--log-file-max-size=0",
    "--v=4",
    "--stderrthreshold=1",
    "-v",
    "0",
    "--alsologtostderr=true",
]

SERVER_MANIFESTS = {
    "unix socket, tokens": [
        "--log-file=/var/log/konnectivity-server.log",
        "--logtostderr=true",
        "--log-file-max-size=0",
        "--uds-name=/etc/kubernetes/konnectivity-server/konnectivity-server.socket",
        "--delete-existing-uds-file",
        "--cluster-cert={file}",
        "--cluster-key={file}",
        "--server-port=0",
        "--agent-port=8091",
        "--health-port=8092",
        "--admin-port=8093",
        "--keepalive-time=1h",
        "--mode=grpc",
        "--agent-namespace=kube-system",
        "--agent-service-account=konnectivity-agent",
        "--kubeconfig={file}",
        "--authentication-audience=system:konnectivity-server",
        "--enable-lease-controller",
    ],
    "controller of a small distribution": [
        "--uds-name=/run/k0s/konnectivity-server/konnectivity-server.sock",
        "--cluster-cert={file}",
        "--cluster-key={file}",
        "--kubeconfig={file}",
        "--mode=grpc",
        "--server-port=0",
        "--agent-port=8132",
        "--admin-port=8133",
        "--agent-namespace=kube-system",
        "--agent-service-account=konnectivity-agent",
        "--authentication-audience=system:konnectivity-server",
        "--logtostderr=true",
        "--stderrthreshold=1",
        "--v=2",
        "--enable-profiling=false",
        "--delete-existing-uds-file=true",
        "--server-id=0123456789abcdef",
        "--proxy-strategies=destHost,default",
        "--server-count=3",
    ],
    "TCP, client certificates": [
        "--server-ca-cert={file}",
        "--server-cert={file}",
        "--server-key={file}",
        "--cluster-ca-cert={file}",
        "--cluster-cert={file}",
        "--cluster-key={file}",
        "--mode",
        "http-connect",
        "--proxy-strategies",
        "default",
        "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "--warn-on-channel-limit=true",
        *UPSTREAM_LOGGING,
    ],
}

AGENT_MANIFESTS = {
    "service account token": [
        "--logtostderr=true",
        "--ca-cert={file}",
        "--proxy-server-host=konnectivity-server.kube-system.svc.cluster.local",
        "--proxy-server-port=8091",
        "--sync-interval=5s",
        "--sync-interval-cap=30s",
        "--sync-forever",
        "--probe-interval=5s",
        "--service-account-token-path={file}",
        "--agent-identifiers=ipv4=10.0.0.1",
        "--count-server-leases",
    ],
    "every flag spelled out": [
        "--admin-bind-address=127.0.0.1", "--admin-server-port=8094", "--agent-cert=", "--agent-id=1f2e",
        "--agent-identifiers=", "--agent-key=", "--alpn-proto=[]", "--ca-cert={file}",
        "--count-server-leases=false", "--enable-contention-profiling=false", "--enable-profiling=false",
        "--health-server-host=localhost", "--health-server-port=8093", "--keepalive-time=1h0m0s",
        "--kube-api-content-type=application/vnd.kubernetes.protobuf", "--kubeconfig=",
        "--lease-label=k8s-app=konnectivity-server", "--lease-namespace=kube-system",
        "--probe-interval=100ms", "--proxy-server-host=127.0.0.1", "--proxy-server-port=40001",
        "--server-count-source=default", "--service-account-token-path=", "--sync-forever=false",
        "--sync-interval=100ms", "--sync-interval-cap=10s", "--warn-on-channel-limit=false",
        "--xfr-channel-size=150",
    ],
    "logging": UPSTREAM_LOGGING,
}  # fmt: skip


class Recorder:
    """Replaces the programs, so that commands are tested up to the call of ``run``."""

    def __init__(self) -> None:
        self.options: object = None
        self.outcome: int | OperatorError = 0

    def run(self, options: object) -> int:
        self.options = options
        if isinstance(self.outcome, OperatorError):
            raise self.outcome
        return self.outcome


@pytest.fixture
def recorder(monkeypatch):
    """Replaces the modules that the commands import lazily."""
    recorder = Recorder()
    for name in ("proxy_server", "proxy_agent", "demo"):
        module = types.ModuleType(f"bootbridge.{name}.main")
        module.run = recorder.run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return recorder


@pytest.fixture
def file(tmp_path):
    """Returns the path of an existing file."""
    path = tmp_path / "file.pem"
    path.write_text("x")
    return str(path)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        *[pytest.param(server.main, argv, id=f"server: {name}") for name, argv in SERVER_MANIFESTS.items()],
        *[pytest.param(agent.main, argv, id=f"agent: {name}") for name, argv in AGENT_MANIFESTS.items()],
    ],
)
def test_a_manifest_of_the_original_starts_without_changes(recorder, file, capsys, command, arguments):
    assert command([argument.replace("{file}", file) for argument in arguments]) == 0
    assert recorder.options is not None
    assert "warning" not in capsys.readouterr().err


def test_klog_flags_are_parsed(recorder):
    """The last of -v and --v wins."""
    assert agent.main(UPSTREAM_LOGGING) == 0
    options = recorder.options
    assert (options.v, options.stderrthreshold, options.log_file_max_size) == (0, 1, 0)
    assert (options.logtostderr, options.alsologtostderr, options.log_file) == (True, True, "")


@pytest.mark.parametrize(("program", "command", "_flags"), COMMANDS)
def test_an_unknown_flag_is_a_one_line_error_with_a_hint(recorder, capsys, program, command, _flags):
    """Exit code 1, nothing on stdout, nothing run."""
    assert command(["--foo=1"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"{program}: unknown flag: --foo (run '{program} --help' for usage)\n"
    assert recorder.options is None


def test_an_invalid_combination_is_a_one_line_error_with_flag_and_fix(recorder, capsys):
    """It contains the error text of the original."""
    assert agent.main(["--sync-interval=1h"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "proxy-agent: --sync-interval: sync interval 1h0m0s must be less than sync interval cap 10s "
        "(lower it, or raise --sync-interval-cap)",
    ]


def test_control_characters_on_the_command_line_do_not_break_the_line(recorder, capsys):
    """A newline in a flag can not fake a second message."""
    assert agent.main(["--a\nb\x1b[31m"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("proxy-agent: unknown flag: --a\\nb\\x1b[31m (")


def test_a_failure_at_start_is_one_line(recorder, capsys):
    """A port in use has nothing to do with usage, so that is not mentioned."""
    recorder.outcome = OperatorError(
        "port 8093 is in use", subject="--health-server-port", hint="choose another"
    )
    assert agent.main([]) == 1
    expected = "proxy-agent: --health-server-port: port 8093 is in use (choose another)\n"
    assert capsys.readouterr().err == expected


def test_the_exit_code_of_the_program_is_returned(recorder):
    recorder.outcome = 3
    assert agent.main([]) == 3


def test_stray_words_and_deprecated_flags_are_reported(recorder, capsys):
    """The original drops the words silently; a bool written with a blank is such a case."""
    assert agent.main(["--sync-forever", "false", "--lease-label=a=b"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "Flag --lease-label has been deprecated, use --lease-label-selector instead",
        "proxy-agent: warning: argument 'false' is ignored",
    ]


def test_insecure_options_are_logged(recorder, file, capsys):
    """Disabled authentication causes a warning."""
    argv = ["--uds-name=/run/x", "--server-port=0", f"--cluster-cert={file}", f"--cluster-key={file}"]
    assert server.main(argv) == 1
    assert "--insecure-agents" in capsys.readouterr().err
    assert server.main([*argv, "--insecure-agents"]) == 0
    assert "proxy-server: warning: --insecure-agents: any client" in capsys.readouterr().err


@pytest.mark.parametrize(("program", "command", "_flags"), COMMANDS)
def test_version(capsys, program, command, _flags):
    """On stdout, exit code 0."""
    assert command(["--version"]) == 0
    assert capsys.readouterr().out == installation.text(f"{program} (bootbridge)")


@pytest.mark.parametrize(("program", "command", "flags"), COMMANDS)
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_shows_every_flag_within_the_terminal(capsys, monkeypatch, program, command, flags, columns):
    """Deprecated ones excepted; words wrap, and only a single word may be longer."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert command(["--help"]) == 0
    page = capsys.readouterr().out
    assert f"Usage:\n  {program} [flags]" in page
    for flag in flags.FLAGS:
        shown = re.search(rf"^  (-\w, )?--{flag.name}( \w+)?(  \(default .*\))?$", page, re.MULTILINE)
        assert bool(shown) != bool(flag.deprecated), flag.name
    prose = [line for line in page.splitlines() if line.startswith("        ") and "--" not in line]
    assert not any(line.endswith("-") for line in prose)
    too_long = [line for line in prose if len(line) > min(columns, 100)]
    assert all(len(line.split()) == 1 for line in too_long)


def test_help_names_types_defaults_and_groups():
    page = help_page.render("proxy-server", "S.", server_flags.EXAMPLES, server_flags.FLAGS, 80)
    for expected in (
        "  --agent-port int  (default 8091)\n",
        "  --keepalive-time duration  (default 1h0m0s)\n",
        "  --delete-existing-uds-file  (default true)\n",
        "  -v, --v level  (default 4)\n",
        "  --server-id string  (default $PROXY_SERVER_ID or a random UUID)\n",
        "\nRouting:\n",
        "\nExamples:\n  # ",
    ):
        assert expected in page
    assert "{program}" not in page


def test_every_flag_has_a_help_text():
    """Except the deprecated, which are hidden."""
    for flags in (server_flags.FLAGS, agent_flags.FLAGS):
        for flag in flags:
            assert bool(flag.help) != bool(flag.deprecated), flag.name


def test_the_examples_of_the_help_are_valid():
    for flags in (server_flags, agent_flags):
        for example in flags.EXAMPLES.replace("\\\n", " ").split("\n\n"):
            line = next(line for line in example.splitlines() if "{program}" in line)
            parsed = flags.FLAGS.parse([word.strip("'") for word in line.split()[1:]])
            assert parsed.fields
            assert not parsed.positionals


@pytest.mark.parametrize("verb", ["server", "agent"])
def test_bootbridge_server_and_agent_are_the_same_programs(recorder, capsys, verb):
    assert main.main([verb, "--foo"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"bootbridge {verb}: unknown flag: --foo (run 'bootbridge {verb} --help' for usage)",
    ]
    assert main.main([verb, "--help"]) == 0
    assert f"bootbridge {verb} [flags]" in capsys.readouterr().out


def test_bootbridge_agent_and_demo_run(recorder):
    """Both get their flags, and their exit codes are returned."""
    assert main.main(["agent", "--proxy-server-port=1234"]) == 0
    assert recorder.options.proxy_server_port == 1234
    recorder.outcome = 4
    assert main.main(["demo", "--keep"]) == 4
    assert recorder.options.keep


def test_a_demo_that_cannot_run_is_a_one_line_error(recorder, capsys):
    recorder.outcome = OperatorError("no loopback")
    assert main.main(["demo"]) == 1
    assert capsys.readouterr().err == "bootbridge demo: no loopback\n"


COMMAND_NAMES = (
    *("server", "agent", "certs", "dial", "forward", "top", "demo"),
    *(
        "render",
        "inject",
        "kasconfig",
        "firewall",
        "address",
        "check",
        "up",
        "status",
        "down",
        "doctor",
        "gather",
    ),
    *("image", "lab", "node", "join-service", "tpm-helper", "schema", "completion", "man", "version", "help"),
)


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("serve", "unknown command 'serve' (did you mean server?)"),
        ("zzz", f"unknown command 'zzz' (commands: {', '.join(COMMAND_NAMES)})"),
        ("", f"command missing (commands: {', '.join(COMMAND_NAMES)})"),
        ("--serve", "unrecognized arguments: --serve (run 'bootbridge --help' for usage)"),
    ],
)
def test_an_unknown_command_is_a_one_line_error(capsys, word, problem):
    assert main.main([word]) == 1
    assert capsys.readouterr().err == f"bootbridge: {problem}\n"


@pytest.mark.parametrize("name", [each for each in COMMAND_NAMES if each not in ("server", "agent", "help")])
def test_every_command_documents_flags_exit_codes_and_examples(capsys, name):
    assert main.main([name, "--help"]) == 0
    page = capsys.readouterr().out
    assert f"usage: bootbridge {name}" in page
    assert "\nExamples:\n" in page
    assert "\nExit codes:\n  0    " in page or "\nCommands:\n" in page
    assert "{program}" not in page


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["up", "--dryrun"], "bootbridge up: unrecognized arguments: --dryrun (did you mean --dry-run?)"),
        (
            ["up", "--platfrom=aws"],
            "bootbridge up: unrecognized arguments: --platfrom=aws (did you mean --platform?)",
        ),
        (
            ["up", "--zzz"],
            "bootbridge up: unrecognized arguments: --zzz (run 'bootbridge up --help' for usage)",
        ),
        (["node", "initt"], "bootbridge node: unknown command 'initt' (did you mean init?)"),
        (["help", "docter"], "bootbridge: unknown command 'docter' (did you mean doctor?)"),
    ],
)
def test_the_name_that_was_probably_meant_is_suggested(capsys, argv, error):
    assert main.main(argv) == 1
    assert capsys.readouterr().err == f"{error}\n"


@pytest.mark.parametrize("words", [[], ["up"], ["node"], ["node", "init"], ["server"]])
def test_help_of_a_command_is_its_page(capsys, words):
    assert main.main(["help", *words]) == 0
    page = capsys.readouterr().out
    assert main.main([*words, "--help"]) == 0
    assert capsys.readouterr().out == page
    assert " ".join(["bootbridge", *words]) in page


def test_the_version_as_json(capsys):
    assert main.main(["version", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == __version__
    assert document["python"] == platform.python_version()
    assert document["openssl"] in ssl.OPENSSL_VERSION
    assert document["compiled"] is (document["reason"] == "")


def group() -> CommandGroup:
    def add_flags(parser):
        parser.add_argument("--dir", default="/here")

    def run(flags):
        print(flags.program, flags.dir, getattr(flags, "arguments", None))
        return ExitCode.FINDINGS

    commands = {
        "own": Command(run, flags=add_flags, summary="parse all flags"),
        "other": Command(run, flags=add_flags, summary="pass arguments on", passthrough="ARGUMENT"),
        "lazy": LazyCommand("bootbridge.cli.status", "import when called"),
        "root": Command(run, flags=add_flags, summary="need root", needs_root=True),
    }
    return CommandGroup("A group.", {"Commands": commands}, "{program} own", add_flags)


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        (["own"], "g own /here None"),
        (["own", "--dir", "/a"], "g own /a None"),
        (["--dir", "/a", "own"], "g own /a None"),
        (["--dir=/a", "own"], "g own /a None"),
        (["other", "--dir", "/b", "x"], "g other /here ['--dir', '/b', 'x']"),
        (["--dir", "/a", "other", "--dir", "/b"], "g other /a ['--dir', '/b']"),
    ],
)
def test_flags_of_a_group_may_precede_the_command(capsys, argv, output):
    """Arguments of a pass-through command are not parsed, except a leading --help."""
    assert group().main(argv, "g") == 2
    assert capsys.readouterr().out == f"{output}\n"
    assert group().main(["--dir", "/a", "other", "--help"], "g") == 0


def test_a_command_that_needs_root_refuses_other_users(capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert group().main(["root"], "g") == 1
    assert capsys.readouterr().err == "g root: permission denied (run it as root)\n"


@pytest.mark.parametrize("argv", [[], ["help"], ["--help"], ["-h"]])
def test_bootbridge_without_a_command_lists_all_commands(capsys, argv):
    assert main.main(argv) == 0
    page = capsys.readouterr().out
    assert [name for name in COMMAND_NAMES if f"\n  {name} " not in page] == []


@pytest.mark.parametrize("word", ["version", "--version"])
def test_bootbridge_version(capsys, word):
    assert main.main([word]) == 0
    shown = capsys.readouterr().out
    assert shown == installation.text("bootbridge")
    number = re.escape(__version__)
    assert re.match(rf"bootbridge {number}, (compiled,|plain) Python 3\.\S+, OpenSSL \d\.\S+\n", shown)


def test_the_version_shows_why_an_installation_is_not_compiled(monkeypatch, tmp_path):
    """The build records it in a file beside the package."""
    monkeypatch.setattr(installation, "COMPILED", False)
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "installation.py"))
    assert installation.text("bootbridge").endswith("\nnot compiled: runs from the source tree\n")
    (tmp_path / "not-compiled.txt").write_text("no C compiler (install gcc)\n")
    assert installation.text("bootbridge").endswith("\nnot compiled: no C compiler (install gcc)\n")
    assert installation.description()["reason"] == "no C compiler (install gcc)"


def test_the_version_of_a_compiled_installation_is_one_line(monkeypatch):
    monkeypatch.setattr(installation, "COMPILED", True)
    assert installation.text("bootbridge").count("\n") == 1
    assert ", compiled, " in installation.text("bootbridge")


@pytest.mark.parametrize("module", ["server", "agent", "main"])
def test_a_command_reads_its_own_command_line_and_exits_with_its_code(module):
    """As a process: the console scripts do the same."""
    command = [sys.executable, "-m", f"bootbridge.cli.{module}"]
    failed = subprocess.run([*command, "--foo"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "--foo" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert subprocess.run([*command, "--version"], capture_output=True, check=False).returncode == 0


def test_a_closed_output_pipe_is_not_a_failure():
    """``proxy-server --help | true`` stays silent."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "bootbridge.cli.server", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_wraps_to_the_real_terminal():
    """A terminal of 60 columns, without COLUMNS in the environment."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 60))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "bootbridge.cli.agent", "--help"], stdout=terminal, env=environment
    )
    os.close(terminal)
    page = _read_all(controller).replace("\r\n", "\n")
    assert process.wait(10) == 0
    assert "\n        Log to this file. Only with" in page
    assert (
        max(len(line) for line in page.splitlines() if line.startswith("        ") and "--" not in line) <= 60
    )


def _read_all(descriptor: int) -> str:
    pieces = []
    with contextlib.closing(os.fdopen(descriptor, "rb", buffering=0)) as stream:
        while True:
            try:
                piece = stream.read(65536)
            except OSError as error:
                # Linux reports a terminal whose other end is closed this way.
                if error.errno != errno.EIO:
                    raise
                break
            if not piece:
                break
            pieces.append(piece)
    return b"".join(pieces).decode()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileExistsError(errno.EEXIST, "File exists", "/opt/kubectl"), "/opt/kubectl: File exists"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_unexpected_system_error_is_one_line_with_the_file(error, message, capsys):
    def body() -> int:
        raise error

    assert run_guarded("bootbridge lab", body) == 1
    assert capsys.readouterr().err == f"bootbridge lab: {message}\n"


HEAVY = ("argparse", "asyncio", "ssl", "socket", "logging", "ipaddress", "urllib.parse", "json", "uuid",
         "cryptography", "yaml", "subprocess", "csv", "difflib")  # fmt: skip


@pytest.mark.parametrize("module", ["server", "agent", "main"])
def test_parsing_flags_imports_no_large_module(module):
    code = f"import sys, bootbridge.cli.{module}; print(*(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_inject_imports_only_what_it_needs():
    """The rest of `bootbridge` would take longer than the injection of a 300 kB file, 0.1 s."""
    unneeded = (
        "asyncio",
        "http.client",
        "bootbridge.bootstrap.diagnose.check",
        "bootbridge.kube.blocking_client",
    )
    code = f"import sys, bootbridge.cli.inject; print(*(n for n in {unneeded!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_output_in_several_pieces_survives_a_closed_pipe():
    """As with ``bootbridge doctor | head -5``: the second write must not raise."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "from bootbridge.cli.output import print_output\nfor _ in range(3): print_output('line\\n')"
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_dry_runs_are_marked_as_such(tmp_path, capsys):
    root = ["--root", str(tmp_path), "--dry-run"]
    assert main.main(["up", *root, "--image=registry.example/b:1", "--node-ip=192.0.2.5"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("plan record             would be created\n")
    assert "\nDry run: nothing was changed.\n" in output
    command = f"bootbridge up --root {tmp_path} --image=registry.example/b:1 --node-ip=192.0.2.5"
    assert output.endswith(f"\nNext:\n  {command}  install it\n")
    assert main.main(["down", *root]) == 0
    assert capsys.readouterr().out == "Nothing is installed.\n\nDry run: nothing was removed.\n"
    assert main.main(["down", *root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"found": []}
    assert not any(tmp_path.iterdir())
