"""Parses commands with a cloud's real CLI, without running them and without network.

Run by the Python of build/clouds as `parse_commands.py PROGRAM`, with a JSON list of commands (each a list of
words after the program) on stdin. Prints a JSON list: for each command "" or what the CLI's parser said.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any


class _Parsed(Exception):
    """Stops a CLI after it has parsed the command."""


def azure() -> Callable[[list[str]], None]:
    os.environ["AZURE_CONFIG_DIR"] = tempfile.mkdtemp()
    os.environ["AZURE_CORE_COLLECT_TELEMETRY"] = "no"
    from azure.cli.core import get_default_cli

    cli = get_default_cli()

    def parse(words: list[str]) -> None:
        invocation = cli.invocation_cls(
            cli_ctx=cli,
            parser_cls=cli.parser_cls,
            commands_loader_cls=cli.commands_loader_cls,
            help_cls=cli.help_cls,
        )
        cli.invocation = invocation
        parse_args = invocation.parser.parse_args

        def parse_and_stop(*arguments: Any) -> None:
            raise _Parsed(parse_args(*arguments))

        invocation.parser.parse_args = parse_and_stop
        with contextlib.suppress(_Parsed):
            invocation.execute(words)
            raise AssertionError("the command was not parsed")

    return parse


def aws() -> Callable[[list[str]], None]:
    """`--generate-cli-skeleton output` parses the flags and validates the request, and sends nothing."""
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    from awscli.clidriver import create_clidriver

    def parse(words: list[str]) -> None:
        # A driver keeps handlers of the first command, so each command gets its own.
        code = create_clidriver().main([*words, "--generate-cli-skeleton", "output"])
        if code:
            raise SystemExit(code)

    return parse


def openstack() -> Callable[[list[str]], None]:
    folder = tempfile.mkdtemp()
    auth = "{auth_url: http://127.0.0.1:9/v3, username: u, password: p, project_name: p}"
    with open(f"{folder}/clouds.yaml", "w") as file:
        file.write(f"clouds:\n  mycloud:\n    auth: {auth}\n")
    os.environ["OS_CLIENT_CONFIG_FILE"] = f"{folder}/clouds.yaml"
    from cliff.command import Command
    from cliff.display import DisplayCommandBase
    from openstackclient import shell
    from openstackclient.common.clientmanager import ClientManager

    class Shell(shell.OpenStackShell):
        def prepare_to_run_command(self, command: object) -> None:
            """Would authenticate."""

    # Its answer decides which flags a command has; all clouds that OpenShift supports have Neutron.
    ClientManager.is_network_endpoint_enabled = lambda self: True
    parsed: list[object] = []
    for kind in (Command, DisplayCommandBase):
        kind.run = lambda self, namespace: parsed.append(namespace)

    def parse(words: list[str]) -> None:
        parsed.clear()
        code = Shell().run(list(words))
        if code or not parsed:
            raise SystemExit(code or "the command was not parsed")

    return parse


PARSERS = {"az": azure, "aws": aws, "openstack": openstack}


def main(program: str) -> None:
    answers = []
    parse = PARSERS[program]()
    for words in json.load(sys.stdin):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                parse(words)
                answer = ""
            except SystemExit as error:
                answer = f"exit {error.code}"
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
        answers.append(f"{answer}: {printed.getvalue()[-800:]}" if answer else "")
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
