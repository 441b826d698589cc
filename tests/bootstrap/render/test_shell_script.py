"""Checks the text of the generated script: ShellCheck, settings, quoting."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import fields
from datetime import timedelta
from importlib import resources
from ipaddress import ip_address
from pathlib import Path

import pytest

from bootbridge.bootstrap.plan.paths import OPENSHIFT_PATHS
from bootbridge.bootstrap.plan.plan import Flavour, Plan, ProxyImage
from bootbridge.bootstrap.render.shell import script as shell
from tests.support.not_run import needs_program

PLANS = {
    "the default plan": Plan(),
    "another plan": Plan(
        image=ProxyImage("bootbridge", "registry.example/bootbridge:1"),
        key_kind="ecdsa-p256",
        validity=timedelta(hours=6),
        node_ips=(ip_address("10.0.0.5"), ip_address("fd00::5")),
    ),
}


def script(plan: Plan) -> str:
    return shell.scripts(plan)[plan.paths.hook_script].data.decode()


@needs_program("shellcheck")
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_shellcheck_accepts_the_script(tmp_path: Path, plan: Plan) -> None:
    """At its strictest level."""
    path = tmp_path / "hook.sh"
    path.write_text(script(plan))

    done = subprocess.run(
        ["shellcheck", "--severity=style", str(path)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_the_script_is_one_executable_file() -> None:
    """At the path that bootkube.sh sources, with the mode of the installer's programs."""
    plan = Plan()

    assert {path: oct(asset.mode) for path, asset in shell.scripts(plan).items()} == {
        plan.paths.hook_script: "0o555"
    }


def test_kubeadm_needs_no_script() -> None:
    """`bootbridge up` does the same in Python."""
    assert shell.scripts(Plan(flavour=Flavour.KUBEADM, image=ProxyImage("bootbridge", "x.example/y"))) == {}


def test_the_same_plan_gives_the_same_bytes() -> None:
    """So that injecting twice gives the same file."""
    assert shell.scripts(Plan()) == shell.scripts(Plan())


def test_functions_contain_no_path() -> None:
    """They use settings, which come from the plan."""
    parts = "".join(
        (resources.files("bootbridge.bootstrap.render.shell") / f"{name}.sh").read_text()
        for name in shell.SECTIONS
    )
    paths = [getattr(OPENSHIFT_PATHS, field.name) for field in fields(OPENSHIFT_PATHS)]

    assert not [path for path in paths if path in parts]
    assert "konnectivity" not in parts


def test_settings_and_their_uses_agree() -> None:
    """No setting is unused, and no variable undefined."""
    text = script(Plan())
    settings = set(shell._settings(Plan())) | set(shell.RULES)
    functions = text[text.index("# --- functions shared by all stages") :]

    assert not {name for name in settings if f"BOOTBRIDGE_{name}" not in functions}
    undefined = [
        word
        for word in set(functions.replace("{", " ").replace("$", " ").split())
        if word.startswith("BOOTBRIDGE_")
        and word.isidentifier()
        and word.removeprefix("BOOTBRIDGE_") not in settings | {"ADDRESSES"}
    ]
    assert undefined == []


def test_a_hostile_image_reference_is_quoted(tmp_path: Path) -> None:
    """No text of a plan is executed."""
    reference = f"x.example/a'b\"$(touch {tmp_path}/ran)`touch {tmp_path}/ran`;&|\\y"
    path = tmp_path / "hook.sh"
    path.write_text(script(Plan(image=ProxyImage("bootbridge", reference))))
    show = f'. {shlex.quote(str(path))}; printf %s "$BOOTBRIDGE_IMAGE"'

    done = subprocess.run(["bash", "-c", show], capture_output=True, text=True, check=True)

    assert done.stdout == reference
    assert not (tmp_path / "ran").exists()


def test_usage_of_a_manual_run(tmp_path: Path) -> None:
    """Sourcing does nothing; running without arguments prints the usage."""
    path = tmp_path / "hook.sh"
    path.write_text(script(Plan()))

    sourced = subprocess.run(["bash", "-c", f". {path}"], capture_output=True, text=True, check=False)
    run = subprocess.run(["bash", str(path)], capture_output=True, text=True, check=False)

    assert (sourced.returncode, sourced.stdout, sourced.stderr) == (0, "", "")
    assert (run.returncode, run.stderr) == (2, f"usage: {path} address|cleanup [--abandoned]|cleanup-retry\n")
