"""Finds out whether this machine can build a C extension for this Python, by building one."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

_PROBE = """\
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", NULL, 0, NULL};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
"""


def problem() -> str:
    """Returns why no extension can be built, with the fix in parentheses; empty if one was built."""
    if sys.implementation.name != "cpython":
        return f"mypyc does not support {sys.implementation.name} (use CPython)"
    program = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(program) is None:
        return f"no C compiler: {program} not found (on Debian: apt-get install gcc python3-dev)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h not found (on Debian: apt-get install python3-dev)"
    if not _builds():
        return f"{program} cannot build a Python extension (pip install -v shows its error)"
    return ""


def _builds() -> bool:
    """Compiles and links an extension, with the options that setuptools gives to the compiled modules."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory(prefix="bootbridge-probe-") as scratch:
        source = Path(scratch, "probe.c")
        source.write_text(_PROBE)
        command = build_ext(
            Distribution({"name": "probe", "ext_modules": [Extension("probe", [str(source)])]})
        )
        command.build_lib = command.build_temp = scratch
        command.ensure_finalized()
        try:
            command.run()
        except Exception as error:  # the exceptions of setuptools and distutils differ between releases
            print(f"bootbridge: {error}", file=sys.stderr)
            return False
    return True
