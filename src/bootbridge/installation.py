"""How this installation was built: compiled by mypyc, or plain Python and why. See build_backend."""

from __future__ import annotations

import os
import sys

from bootbridge import __version__, bounds

# bounds is one of the modules that a compiled installation has as a library.
COMPILED = not (bounds.__file__ or "").endswith(".py")
# The file beside this one in which the build of a plain installation writes the reason.
PLAIN_RECORD = "not-compiled.txt"


def plain_reason() -> str:
    """Returns why the installation is not compiled, with the fix in parentheses; empty if it is."""
    if COMPILED:
        return ""
    try:
        with open(os.path.join(os.path.dirname(__file__), PLAIN_RECORD)) as record:
            return record.read().strip()
    except FileNotFoundError:
        return "runs from the source tree"


def description() -> dict[str, object]:
    """What runs here, for `bootbridge version`."""
    import ssl

    return {
        "version": __version__,
        "compiled": COMPILED,
        "reason": plain_reason(),
        "python": sys.version.split()[0],
        "openssl": ssl.OPENSSL_VERSION.split()[1],
    }


def text(program: str) -> str:
    """The same as text: `bootbridge 0.2.0, compiled, Python 3.11.7, OpenSSL 3.0.15`, or `plain Python …`."""
    found = description()
    kind = "compiled," if found["compiled"] else "plain"
    line = f"{program} {found['version']}, {kind} Python {found['python']}, OpenSSL {found['openssl']}\n"
    return line + (f"not compiled: {found['reason']}\n" if found["reason"] else "")
