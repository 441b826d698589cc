"""A program in a cluster: which pod is chosen, and that kubectl's forwarding ends and starts again.

The kubectl here is a script with the same output; tests/e2e/test_2_with_tunnel.py has the real one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bootbridge.errors import OperatorError
from bootbridge.top.fetch import NoAnswerError
from bootbridge.top.port_forward import (
    ClusterTarget,
    ForwardedProgram,
    ProgramPod,
    choose_pod,
    list_pods,
)
from bootbridge.top.snapshot import AGENT, SERVER
from tests.support.process_program import until
from tests.support.tunnel_programs import Programs

KUBECTL = """\
#!{python}
import json, pathlib, signal, sys
here = pathlib.Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
words = [word for word in sys.argv[1:] if not word.startswith("--")]
if words[0] == "get":
    selector = next(word for word in sys.argv if word.startswith("--selector="))
    if (here / "error").exists():
        sys.exit("Error from server (Forbidden): pods is forbidden\\x1b[2J")
    pods = json.loads((here / "pods").read_text())
    label = selector.removeprefix("--selector=").split()[0]
    print(json.dumps({{"items": [pod for pod in pods if label in pod["metadata"]["labels"]]}}))
else:
    if (here / "lost").exists():
        sys.exit("error: unable to forward port because pod is not running")
    for port in words[2:]:
        print(f"Forwarding from 127.0.0.1:{{port[1:]}} -> {{port[1:]}}", flush=True)
        print(f"Forwarding from [::1]:{{port[1:]}} -> {{port[1:]}}", flush=True)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
"""


class FakeKubectl:
    """Its pods run on this machine, so the ports are forwarded to themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "kubectl"
        program.write_text(KUBECTL.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)

    def pods(self, *pods: dict[str, Any]) -> None:
        (self.folder / "pods").write_text(json.dumps(pods))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubectl]:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return FakeKubectl(folder)


def pod(
    name: str, app: str = "konnectivity-agent", *, node: str = "", label: str = "app", **more: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "bootbridge", "labels": {label: app}},
        "spec": {"nodeName": node, "containers": [{"args": more.get("args", [])}]},
        "status": {"phase": more.get("phase", "Running")},
    }


def test_ports_are_those_of_the_pods_flags(kubectl: FakeKubectl) -> None:
    kubectl.pods(
        pod("a", args=["--admin-server-port=1111", "--health-server-port=2222"]),
        pod("s", "konnectivity-server", args=["--admin-port=99999"]),
        pod("k", label="k8s-app"),
        pod("x", "other"),
    )
    found = {each.name: (each.program, each.ports) for each in list_pods(ClusterTarget())}
    assert found == {
        "a": (AGENT, (1111, 2222)),
        "s": (SERVER, (8095, 8092)),
        "k": (AGENT, (8094, 8093)),
    }


def test_context_kubeconfig_and_namespace_are_passed_on(kubectl: FakeKubectl) -> None:
    kubectl.pods()
    list_pods(ClusterTarget(kubeconfig="/k", context="c", namespace="n"))
    assert {"--kubeconfig=/k", "--context=c", "--namespace=n"} <= set(kubectl.calls()[0])
    list_pods(ClusterTarget())
    assert "--all-namespaces" in kubectl.calls()[-1]


def listed(*names: str) -> list[ProgramPod]:
    """`s` or `a` for the program, then the name; `-` if it does not run."""
    return [
        ProgramPod(
            SERVER if name[0] == "s" else AGENT,
            "ns",
            name.rstrip("-"),
            f"node-{name.rstrip('-')}",
            name[-1] != "-",
            (1, 2),
        )
        for name in names
    ]


@pytest.mark.parametrize(
    ("pods", "target", "chosen"),
    [
        (("s1", "a1", "a2"), ClusterTarget(), "s1"),
        (("a1",), ClusterTarget(), "a1"),
        (("s1-", "a1"), ClusterTarget(), "a1"),
        (("s1", "a1", "a2"), ClusterTarget(program=AGENT, name="a2"), "a2"),
        (("s1", "a1", "a2"), ClusterTarget(program=AGENT, name="node-a2"), "a2"),
        (("s1", "s2"), ClusterTarget(program=SERVER, name="node-s2"), "s2"),
    ],
)
def test_the_pod_that_was_asked_for_is_chosen(
    pods: tuple[str, ...], target: ClusterTarget, chosen: str
) -> None:
    assert choose_pod(target, listed(*pods)).name == chosen


@pytest.mark.parametrize(
    ("pods", "target", "error"),
    [
        (
            (),
            ClusterTarget(),
            "no running pod with the label app=konnectivity-server or app=konnectivity-agent",
        ),
        (("a1-",), ClusterTarget(), "no running pod"),
        (
            ("a1", "a2"),
            ClusterTarget(),
            r"--agent: required flag missing \(running: a1 on node-a1, a2 on node-a2\)",
        ),
        (("s1", "s2", "a1"), ClusterTarget(), "--server: required flag missing"),
        (
            ("s1", "a1"),
            ClusterTarget(program=AGENT, name="s1"),
            r"--agent: no running pod or node 's1' \(running: a1",
        ),
        (tuple(f"a{n}" for n in range(20)), ClusterTarget(), "and 12 more"),
    ],
)
def test_what_is_missing_is_named(pods: tuple[str, ...], target: ClusterTarget, error: str) -> None:
    with pytest.raises(OperatorError, match=error):
        choose_pod(target, listed(*pods))


def test_without_kubectl_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(OperatorError, match=r"kubectl not found in PATH \(install it, or forward"):
        list_pods(ClusterTarget())


def test_kubectls_own_error_is_shown(kubectl: FakeKubectl) -> None:
    (kubectl.folder / "error").touch()
    with pytest.raises(NoAnswerError) as caught:
        list_pods(ClusterTarget())
    assert str(caught.value) == ("kubectl get pods: Error from server (Forbidden): pods is forbidden\\x1b[2J")


def test_an_agent_is_sampled_through_the_forwarding(kubectl: FakeKubectl, programs: Programs) -> None:
    """The forwarding ends with the program, and starts again if kubectl has ended."""
    _, agent = programs.pair()
    ports = [f"--admin-server-port={agent.admin.port}", f"--health-server-port={agent.health.port}"]
    kubectl.pods(pod("agent-x", node="worker-1", args=ports))
    program = ForwardedProgram(ClusterTarget(program=AGENT, name="worker-1"))
    try:
        assert program.sample().program == AGENT
        assert program.title == "bootbridge/agent-x on worker-1"
        first = _child()
        os.kill(first, signal.SIGKILL)
        until(lambda: program._forward is not None and not program._forward.alive, "kubectl has ended")
        (kubectl.folder / "lost").touch()
        with pytest.raises(NoAnswerError, match="kubectl port-forward failed: error: unable to forward port"):
            program.sample()
        (kubectl.folder / "lost").unlink()
        assert program.sample().program == AGENT
        second = _child()
    finally:
        program.close()
    assert second != first
    assert not Path(f"/proc/{second}").exists()


def _child() -> int:
    """Returns the process of the script."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    found = [int(pid) for pid in children if b"port-forward" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(found) == 1, found
    return found[0]
