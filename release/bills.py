"""The bill of materials of the Python package, and the check of all against CycloneDX's schema."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

from bootbridge.image import bill_of_materials
from release.commands import run

_LOCKED = re.compile(r"(?m)^([A-Za-z0-9_.-]+)==(\S+)")
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
validator = JsonStrictValidator(getattr(SchemaVersion, "V" + sys.argv[1].replace(".", "_")))
found = {path: validator.validate_str(open(path).read()) for path in sys.argv[2:]}
sys.exit("\\n".join(f"{path}: {problem}" for path, problem in found.items() if problem) or 0)
"""


def write_package_bill(output: Path, lock: Path, version: str, time: int) -> Path:
    """Lists the package and the locked versions of what it needs at run time."""
    purl = f"pkg:pypi/bootbridge@{version}"
    main: bill_of_materials.Component = {
        "type": "application",
        "bom-ref": purl,
        "name": "bootbridge",
        "version": version,
        "purl": purl,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    needed = [bill_of_materials.python_package(*found) for found in _LOCKED.findall(lock.read_text())]
    timestamp = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    target = output / f"bootbridge-{version}.cdx.json"
    target.write_text(json.dumps(bill_of_materials.document(main, needed, timestamp), indent=2) + "\n")
    return target


def validate(python: Path, output: Path) -> None:
    """Raises if a document does not follow the official schema; `python` has cyclonedx-python-lib."""
    documents = sorted(output.glob("*.cdx.json"))
    run([python, "-c", _VALIDATE, bill_of_materials.SPECIFICATION, *documents])
