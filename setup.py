"""Declares what pyproject.toml cannot: the compiled modules, and the record of a wheel without them.

build_backend decides whether to compile. The same source also runs interpreted. Only packages and modules
that handle every connection or every byte are compiled.
"""

from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

import build_backend

# The rest of runtime handles start-up, certificates, logs and admin HTTP.
RUNTIME = [
    "accept_rate",
    "byte_stream",
    "connection_limits",
    "dialler",
    "endpoint_policy",
    "event_loop",
    "http2_transport",
    "input_turns",
    "keepalive",
    "listeners",
    "pump",
    "sockets",
    "source_penalties",
    "tls_stream",
]
COMPILED = [
    "src/bootbridge/bounds.py",
    "src/bootbridge/metrics.py",
    *(path for path in glob("src/bootbridge/wire/*.py") if not path.endswith(("/proto.py", "/__init__.py"))),
    *(path for path in glob("src/bootbridge/ports/*.py") if not path.endswith("/__init__.py")),
    *(path for path in glob("src/bootbridge/tunnel/*.py") if not path.endswith("/__init__.py")),
    *(f"src/bootbridge/runtime/{name}.py" for name in RUNTIME),
    *(f"src/bootbridge/proxy_server/{name}.py" for name in ("agent_certificate", "agent_port")),
]


def extensions() -> list[Extension]:
    if not build_backend.current.compiled:
        return []
    from mypyc.build import mypycify

    return mypycify(
        sorted(COMPILED),
        opt_level="2",
        debug_level="0",
        target_dir=f"{build_backend.current.directory}/mypyc",
        group_name="bootbridge",  # names the library that all compiled modules share
    )


class BuildPy(build_py):
    """Also records why a wheel is not compiled; bootbridge/installation.py reads it."""

    def run(self) -> None:
        super().run()
        if build_backend.current.plain_reason:
            record = Path(self.build_lib, "bootbridge", "not-compiled.txt")
            record.write_text(build_backend.current.plain_reason + "\n")


setup(
    ext_modules=extensions(),
    cmdclass={"build_py": BuildPy},
    options={"build": {"build_base": build_backend.current.directory}},
)
