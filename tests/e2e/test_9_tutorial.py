"""The tutorial, pasted into a shell from its first command to its last."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.lab import IMAGES
from tests.tools.docs.blocks import Place, sessions
from tests.tools.docs.markdown import ROOT
from tests.tools.docs.run_blocks import PROGRAMS, run

pytestmark = pytest.mark.e2e
TUTORIAL = ROOT / "docs/tutorial.md"


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """A webhook call fails without the tunnel and succeeds with it, with the output that is printed there."""
    (session,) = sessions(TUTORIAL)
    assert session.place is Place.LAB
    lab = tmp_path / "lab"
    try:
        run(session, tmp_path, environment={"BOOTBRIDGE_LAB": str(lab), "BOOTBRIDGE_LAB_IMAGES": str(IMAGES)})
    finally:
        # The tutorial ends with it; after a failed block it is still to do.
        subprocess.run([PROGRAMS / "bootbridge", "lab", "down", "--dir", lab], check=False)
