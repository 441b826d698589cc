"""Packs the Helm chart, as `helm package` does, but always with the same bytes."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path

from release.commands import ReleaseError

CHART = Path("deploy/helm/bootbridge")


def pack(source: Path, output: Path, version: str, time: int) -> Path:
    """Writes the chart; its version and appVersion must be those of the release."""
    folder = source / CHART
    declared = (folder / "Chart.yaml").read_text()
    for field in ("version", "appVersion"):
        found = re.search(rf"(?m)^{field}:\s*[\"']?([^\"'\s#]+)", declared)
        if found is None or found[1] != version:
            seen = found[1] if found else "nothing"
            raise ReleaseError(f"{CHART}/Chart.yaml: {field} is {seen} (set it to {version})")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if path.name != ".helmignore":
                info = tarfile.TarInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}")
                data = path.read_bytes()
                info.size, info.mode, info.mtime = len(data), 0o644, time
                tar.addfile(info, io.BytesIO(data))
    target = output / f"bootbridge-chart-{version}.tgz"
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return target
