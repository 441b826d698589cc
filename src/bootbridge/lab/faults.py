"""Fault injection: cut links, killed containers, restarts, power loss and changed addresses."""

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
    """Cuts a node's link: packets are lost without an error on either side."""
    network.disconnect(lab.namespaces(SWITCH), lab.layout.node(node).name)


def reconnect(lab: Lab, node: str) -> None:
    network.reconnect(lab.namespaces(SWITCH), lab.layout.node(node).name)


def containers(lab: Lab, node: str, name: str) -> list[str]:
    """Returns the ids of the running containers with that name."""
    chosen = f'labels."io.kubernetes.container.name"=={name}'
    known = lab.namespaces(node).run_checked(*_CTR, "containers", "list", "--quiet", chosen).decode().split()
    tasks = lab.namespaces(node).run_checked(*_CTR, "tasks", "list").decode().splitlines()[1:]
    running = {line.split()[0] for line in tasks if "RUNNING" in line}
    return [each for each in known if each in running]


def kill(lab: Lab, node: str, container: str, how: signal.Signals = signal.SIGKILL) -> None:
    """Signals all processes of a container; the kubelet restarts it."""
    found = containers(lab, node, container)
    if not found:
        raise OperatorError("no running container", subject=f"{container} on {node}")
    for each in found:
        lab.namespaces(node).run_checked(*_CTR, "tasks", "kill", "--all", f"--signal={how.name}", each)


def restart_apiserver(lab: Lab, node: str = "bootstrap") -> None:
    """Terminates it as the kubelet does, with SIGKILL after its grace period; the kubelet restarts it."""
    running = containers(lab, node, APISERVER)
    kill(lab, node, APISERVER, signal.SIGTERM)
    # Without SIGKILL it would wait a minute for open watches.
    time.sleep(control_plane.GRACE_SECONDS)
    for each in running:
        # Not checked: it may have ended already.
        lab.namespaces(node).run([*_CTR, "tasks", "kill", "--all", f"--signal={signal.SIGKILL.name}", each])


def stop_node(lab: Lab, node: str) -> None:
    """Cuts a cluster node's power; its disk is kept."""
    if not lab.layout.node(node).pod_subnets:
        raise OperatorError(
            "cannot be stopped: its etcd is in memory", subject=node, hint="stop another node"
        )
    lab.namespaces(node).end()


def start_node(lab: Lab, node: str, components: Components) -> None:
    """Starts a stopped node again, with the same disk."""
    it = lab.layout.node(node)
    lab.create_machine(it)
    lab.start_runtime(it, components)
    lab.start_kubelet(it, components, standalone=False)


def change_address(lab: Lab) -> None:
    """Changes the bootstrap node's addresses.

    The API stays reachable at the old address, which becomes that of a load balancer (the switch). It
    forwards only the ports of the API server and of etcd.
    """
    bootstrap, switch = lab.namespaces("bootstrap"), lab.namespaces(SWITCH)
    old, new = lab.layout.bootstrap, lab.layout.moved_bootstrap
    for before, after, subnet in zip(old.addresses, new.addresses, lab.layout.networks.machine, strict=True):
        network.change_address(bootstrap, before, after, subnet.prefixlen)
        for port in (APISERVER_PORT, control_plane.ETCD_PORT):
            network.forward_port(switch, bootstrap, (before, subnet), after, port)
    for node in lab.layout.all_nodes:
        network.flush_neighbours(lab.namespaces(node.name))
