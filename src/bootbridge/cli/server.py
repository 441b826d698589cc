"""``proxy-server``, also ``bootbridge server``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge.cli.command import Command
from bootbridge.cli.server_flags import EXAMPLES, FLAGS, SYNOPSIS
from bootbridge.proxy_server.options import ServerOptions, validate, warnings

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None, program: str = "proxy-server") -> int:
    """Run the proxy-server until it is told to stop; the result is the exit code."""
    return Command(
        flags=FLAGS,
        options=ServerOptions,
        validate=validate,
        warnings=warnings,
        run=_run,
        synopsis=SYNOPSIS,
        examples=EXAMPLES,
    ).main(argv, program)


def _run(options: ServerOptions) -> int:
    # Late: a bad flag or a wish for help is answered without loading the server.
    from bootbridge.proxy_server.main import run

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
