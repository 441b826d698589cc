"""``proxy-agent``, also ``bootbridge agent``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge.cli.agent_flags import EXAMPLES, FLAGS, SYNOPSIS
from bootbridge.cli.command import Command
from bootbridge.proxy_agent.options import AgentOptions, validate, warnings

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None, program: str = "proxy-agent") -> int:
    """Run the proxy-agent until it is told to stop; the result is the exit code."""
    return Command(
        flags=FLAGS,
        options=AgentOptions,
        validate=validate,
        warnings=warnings,
        run=_run,
        synopsis=SYNOPSIS,
        examples=EXAMPLES,
    ).main(argv, program)


def _run(options: AgentOptions) -> int:
    # Late: a bad flag or a wish for help is answered without loading the agent.
    from bootbridge.proxy_agent.main import run

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
