"""Builds the package; with BOOTBRIDGE_COMPILE=1 (make wheel) mypyc compiles the data path.

The same source also runs interpreted. Only packages and modules that handle every connection or every
byte are compiled.
"""

import os
from glob import glob

from setuptools import setup

# The rest of runtime handles start-up, certificates, logs and admin HTTP.
RUNTIME = [
    "accept_rate",
    "byte_stream",
    "connection_limits",
    "dialler",
    "endpoint_policy",
    "event_loop",
    "http2_transport",
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


def compiled() -> list:
    if os.environ.get("BOOTBRIDGE_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify(
        sorted(COMPILED),
        opt_level="2",
        debug_level="0",
        target_dir="build/mypyc",
        group_name="bootbridge",  # names the library that all compiled modules share
    )


setup(ext_modules=compiled())
