"""What goes wrong in life, done to a lab on purpose."""

from __future__ import annotations

import signal
import time

from bootbridge.errors import OperatorError
from bootbridge.lab import control_plane, network
from bootbridge.lab.components import Components
from bootbridge.lab.credentials import APISERVER_PORT
from bootbridge.lab.lab import SWITCH, Lab
from bootbridge.lab.node_runtime import CONTAINERD_SOCKET

APISERVER = "kube-apiserver"
_CTR = ("ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io")


def disconnect(lab: Lab, node: str) -> None:
    """Pull a node's cable: nothing arrives any more, and nobody is told."""
    network.disconnect(lab.namespaces(SWITCH), lab.layout.node(node).name)


def reconnect(lab: Lab, node: str) -> None:
    """Put the cable back."""
    network.reconnect(lab.namespaces(SWITCH), lab.layout.node(node).name)


def containers(lab: Lab, node: str, name: str) -> list[str]:
    """The containers of that name that run on a node."""
    chosen = f'labels."io.kubernetes.container.name"=={name}'
    known = lab.namespaces(node).run_checked(*_CTR, "containers", "list", "--quiet", chosen).decode().split()
    tasks = lab.namespaces(node).run_checked(*_CTR, "tasks", "list").decode().splitlines()[1:]
    running = {line.split()[0] for line in tasks if "RUNNING" in line}
    return [each for each in known if each in running]


def kill(lab: Lab, node: str, container: str, how: signal.Signals = signal.SIGKILL) -> None:
    """End a container's processes; whoever started it finds out for himself."""
    found = containers(lab, node, container)
    if not found:
        raise OperatorError(f"no container {container} runs on {node}")
    for each in found:
        lab.namespaces(node).run_checked(*_CTR, "tasks", "kill", "--all", f"--signal={how.name}", each)


def restart_apiserver(lab: Lab, node: str = "bootstrap") -> None:
    """End it as its kubelet would, by force once its grace is over; the kubelet starts it again."""
    running = containers(lab, node, APISERVER)
    kill(lab, node, APISERVER, signal.SIGTERM)
    # Left alone it would wait a minute for every open watch.
    time.sleep(control_plane.GRACE_SECONDS)
    for each in running:
        # It may have ended by itself, which is as good.
        lab.namespaces(node).run([*_CTR, "tasks", "kill", "--all", f"--signal={signal.SIGKILL.name}", each])


def stop_node(lab: Lab, node: str) -> None:
    """Pull a cluster node's power plug; what it wrote is kept."""
    if not lab.layout.node(node).pod_subnets:
        raise OperatorError(f"{node} cannot be started again: its etcd is in memory", hint="stop another one")
    lab.namespaces(node).end()


def start_node(lab: Lab, node: str, components: Components) -> None:
    """Switch it on again: a machine on the same cable, with the same disk."""
    it = lab.layout.node(node)
    lab.create_machine(it)
    lab.start_runtime(it, components)
    lab.start_kubelet(it, components, standalone=False)


def change_address(lab: Lab) -> None:
    """The bootstrap node gets other addresses.

    The API stays where everybody looks for it, as in life: the old address becomes that of a load
    balancer (here: the switch), which hands on what is meant for the API server and nothing else.
    """
    bootstrap, switch = lab.namespaces("bootstrap"), lab.namespaces(SWITCH)
    old, new = lab.layout.bootstrap, lab.layout.moved_bootstrap
    for before, after, subnet in zip(old.addresses, new.addresses, lab.layout.networks.machine, strict=True):
        network.change_address(bootstrap, before, after, subnet.prefixlen)
        for port in (APISERVER_PORT, control_plane.ETCD_PORT):
            network.forward_port(switch, bootstrap, (before, subnet), after, port)
    for node in lab.layout.all_nodes:
        network.flush_neighbours(lab.namespaces(node.name))
