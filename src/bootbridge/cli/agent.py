"""``proxy-agent``, also ``bootbridge agent``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from bootbridge.cli.agent_flags import EXAMPLES, FLAGS, SYNOPSIS
from bootbridge.cli.proxy_program import ProxyProgram
from bootbridge.proxy_agent.options import AgentOptions, validate, warnings

if TYPE_CHECKING:
    from collections.abc import Sequence


def _run(options: AgentOptions) -> int:
    # Late: --help and invalid flags do not load the agent.
    from bootbridge.proxy_agent.main import run

    return run(options)


COMMAND = ProxyProgram(
    flags=FLAGS,
    options=AgentOptions,
    validate=validate,
    warnings=warnings,
    run=_run,
    synopsis=SYNOPSIS,
    examples=EXAMPLES,
)


def main(argv: Sequence[str] | None = None, program: str = "proxy-agent") -> int:
    """Runs the proxy-agent until it is stopped; returns the exit code."""
    return COMMAND.main(argv, program)


if __name__ == "__main__":
    sys.exit(main())
