"""Bills of materials follow CycloneDX's schema, and list the locked versions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bootbridge.image import bill_of_materials, recipes
from release import bills, environments, interpreters
from release.commands import ReleaseError

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "requirements"


def test_the_bill_of_the_package_lists_the_locked_versions(tmp_path: Path) -> None:
    path = bills.write_package_bill(tmp_path, LOCKS / "runtime.lock", "0.2.0", 1_700_000_000)
    assert path.name == "bootbridge-0.2.0.cdx.json"
    document = json.loads(path.read_text())
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/bootbridge@0.2.0"
    purls = [each["purl"] for each in document["components"]]
    locked = (LOCKS / "runtime.lock").read_text()
    assert "pkg:pypi/hpack@4." in " ".join(purls)
    assert len(purls) == locked.count("==")


@pytest.mark.slow
def test_the_bills_follow_the_official_schema(tmp_path: Path) -> None:
    """The one in cyclonedx-python-lib. A document that does not follow it is refused."""
    (interpreter,) = interpreters.given([sys.executable])
    folder = ROOT / "build/release-work/environments"
    python = environments.create(folder, "release", interpreter, [LOCKS / "release.lock"]) / "python"
    bills.write_package_bill(tmp_path, LOCKS / "runtime.lock", "0.2.0", 1_700_000_000)
    for name, image in (("tunnel", recipes.tunnel()), ("node", recipes.node())):
        document = bill_of_materials.image_document(image, f"localhost/{name}:0.2.0")
        (tmp_path / f"{name}.cdx.json").write_text(json.dumps(document))
    bills.validate(python, tmp_path)

    (tmp_path / "tunnel.cdx.json").write_text(json.dumps(document | {"specVersion": 6}))
    with pytest.raises(ReleaseError, match=r"tunnel\.cdx\.json: "):
        bills.validate(python, tmp_path)
