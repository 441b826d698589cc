"""Builds the package; with BOOTBRIDGE_COMPILE=1 (make wheel) the data's way through it is compiled.

The compiler is mypyc: the source stays the Python that it is, and works without it. Compiled are the
rooms and modules that see every connection or every byte, and nothing else.
"""

import os
from glob import glob

from setuptools import setup

# The rest of runtime is for start-up, certificates, logs and the admin's HTTP.
RUNTIME = [
    "byte_stream",
    "dialler",
    "endpoint_policy",
    "event_loop",
    "http2_transport",
    "keepalive",
    "listeners",
    "pump",
    "sockets",
    "tls_stream",
]
COMPILED = [
    "src/bootbridge/bounds.py",
    "src/bootbridge/metrics.py",
    *(path for path in glob("src/bootbridge/wire/*.py") if not path.endswith(("/proto.py", "/__init__.py"))),
    *(path for path in glob("src/bootbridge/ports/*.py") if not path.endswith("/__init__.py")),
    *(path for path in glob("src/bootbridge/tunnel/*.py") if not path.endswith("/__init__.py")),
    *(f"src/bootbridge/runtime/{name}.py" for name in RUNTIME),
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
