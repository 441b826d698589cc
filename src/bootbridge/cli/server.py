"""``proxy-server``, also ``bootbridge server``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge.cli.proxy_program import ProxyProgram
from bootbridge.cli.server_flags import EXAMPLES, FLAGS, SYNOPSIS
from bootbridge.proxy_server.options import ServerOptions, validate, warnings

if TYPE_CHECKING:
    from collections.abc import Sequence


def _run(options: ServerOptions) -> int:
    # Late: --help and invalid flags do not load the server.
    from bootbridge.proxy_server.main import run

    return run(options)


COMMAND = ProxyProgram(
    flags=FLAGS,
    options=ServerOptions,
    validate=validate,
    warnings=warnings,
    run=_run,
    synopsis=SYNOPSIS,
    examples=EXAMPLES,
)


def main(argv: Sequence[str] | None = None, program: str = "proxy-server") -> int:
    """Runs the proxy-server until it is stopped; returns the exit code."""
    return COMMAND.main(argv, program)


if __name__ == "__main__":
    sys.exit(main())
