"""Adds the egress setting to a kube-apiserver's static pod manifest, and removes it again.

Edits lines at the positions that the YAML parser reports, so that all other bytes stay unchanged, and removal
restores the original. A manifest in flow style or without volumes is serialised again; the caller keeps the
original.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from bootbridge.bootstrap.plan.plan import TunnelPlan
from bootbridge.bootstrap.render import kubeadm
from bootbridge.errors import OperatorError

CONTAINER = "kube-apiserver"


@dataclass(frozen=True)
class HostMount:
    """Holds a directory of the node and its path in the kube-apiserver's container."""

    name: str
    path: str
    seen_as: str
    kind: str
    read_only: bool


@dataclass(frozen=True)
class EgressSetting:
    """Holds the kube-apiserver's flags, and the directories of the egress selector and the socket."""

    arguments: tuple[str, ...]
    mounts: tuple[HostMount, ...]

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(mount.path for mount in self.mounts)

    def without(self, words: Collection[str]) -> EgressSetting:
        """Returns the setting without flags that are already set to the same value."""
        return replace(self, arguments=tuple(word for word in self.arguments if word not in words))


def egress_setting(plan: TunnelPlan) -> EgressSetting:
    """Returns the setting, which is also in the kubeadm configuration."""
    volumes = kubeadm.extra_volumes(plan)
    return EgressSetting(
        tuple(f"--{flag}={value}" for flag, value in kubeadm.extra_args(plan).items()),
        tuple(
            HostMount(v["name"], v["hostPath"], v["mountPath"], v["pathType"], v["readOnly"]) for v in volumes
        ),
    )


def command_line(data: bytes, name: str) -> list[str]:
    """Returns the kube-apiserver's command line."""
    container = _container(_pod(data, name), name)
    return [str(word) for key in ("command", "args") for word in container.get(key) or ()]


def find_setting(data: bytes, wanted: EgressSetting, name: str) -> list[str]:
    """Returns the flags and volumes of the setting that the manifest contains."""
    found = [word for word in command_line(data, name) if word in wanted.arguments]
    return found + [f"volume {volume}" for volume in _our_volumes(_pod(data, name), wanted)]


def add(data: bytes, wanted: EgressSetting, name: str) -> bytes:
    """Returns the manifest with the setting. Raises if a flag has another value already."""
    given = command_line(data, name)
    _refuse_others(given, wanted, name)
    held = {_path_of(volume) for volume in _pod(data, name)["spec"].get("volumes") or ()}
    missing = EgressSetting(
        wanted.without(given).arguments, tuple(mount for mount in wanted.mounts if mount.path not in held)
    )
    if not missing.arguments and not missing.mounts:
        return data
    try:
        return _checked(_added_lines(data, missing), wanted, name)
    except _UnsupportedLayoutError:
        return _dump(_added(_pod(data, name), missing, name))


def _refuse_others(given: list[str], wanted: EgressSetting, name: str) -> None:
    for argument in wanted.arguments:
        flag = argument.partition("=")[0]
        for word in given:
            if word.partition("=")[0] == flag and word != argument:
                hint = f"remove this flag: the tunnel requires {argument}"
                raise OperatorError(f"conflicting flag {word}", subject=name, hint=hint)


def remove(data: bytes, wanted: EgressSetting, name: str) -> bytes:
    """Returns the manifest without the setting."""
    if not find_setting(data, wanted, name):
        return data
    try:
        return _removed_lines(data, wanted)
    except _UnsupportedLayoutError:
        return _dump(_removed(_pod(data, name), wanted, name))


class _UnsupportedLayoutError(Exception):
    """Signals a layout in which lines cannot be added or removed."""


# --- editing lines


def _added_lines(data: bytes, wanted: EgressSetting) -> bytes:
    lines = data.decode().splitlines(keepends=True)
    lists = _ManifestLists(data)
    insertions = [lists.after_program([f"- {argument}" for argument in wanted.arguments])]
    if wanted.mounts:
        mounts = [line for mount in wanted.mounts for line in _mount_lines(mount)]
        volumes = [line for mount in wanted.mounts for line in _volume_lines(mount)]
        insertions.append(lists.before_first(lists.mounts, mounts))
        insertions.append(lists.before_first(lists.volumes, volumes))
    for at, new in sorted(insertions, reverse=True):
        lines[at:at] = new
    return "".join(lines).encode()


def _removed_lines(data: bytes, wanted: EgressSetting) -> bytes:
    lines = data.decode().splitlines(keepends=True)
    lists = _ManifestLists(data)
    names = {_value(item, "name") for item in _items(lists.volumes) if _host_path(item) in wanted.paths}
    removed = [
        *lists.ranges(lists.command, lambda item: item.value in wanted.arguments),
        *lists.ranges(lists.args, lambda item: item.value in wanted.arguments),
        *lists.ranges(lists.mounts, lambda item: _value(item, "name") in names),
        *lists.ranges(lists.volumes, lambda item: _value(item, "name") in names),
    ]
    for start, end in sorted(removed, reverse=True):
        del lines[start:end]
    return "".join(lines).encode()


class _ManifestLists:
    """Finds the four lists of the manifest in its text."""

    def __init__(self, data: bytes) -> None:
        spec = _child(yaml.compose(data, Loader=yaml.SafeLoader), "spec")
        containers = _items(_child(spec, "containers"))
        container = next((c for c in containers if _value(c, "name") == CONTAINER), None)
        self.command = _child(container, "command")
        self.args = _child(container, "args")
        self.mounts = _child(container, "volumeMounts")
        self.volumes = _child(spec, "volumes")

    def after_program(self, new: list[str]) -> tuple[int, list[str]]:
        if _items(self.args):
            return self.before_first(self.args, new)
        items = _items(self.command)
        if not items:
            raise _UnsupportedLayoutError
        return _last_line(items[0]) + 1, _indented(new, _column(self.command))

    def before_first(self, sequence: yaml.Node | None, new: list[str]) -> tuple[int, list[str]]:
        items = _items(sequence)
        if not items:
            raise _UnsupportedLayoutError
        return items[0].start_mark.line, _indented(new, _column(sequence))

    def ranges(
        self, sequence: yaml.Node | None, chosen: Callable[[yaml.Node], bool]
    ) -> Iterator[tuple[int, int]]:
        items = _items(sequence)
        picked = [item for item in items if chosen(item)]
        if picked and len(picked) == len(items):
            raise _UnsupportedLayoutError
        if picked:
            _column(sequence)
        for item in picked:
            yield item.start_mark.line, _last_line(item) + 1


def _mount_lines(mount: HostMount) -> list[str]:
    lines = [f"- mountPath: {mount.seen_as}", f"  name: {mount.name}"]
    return [*lines, "  readOnly: true"] if mount.read_only else lines


def _volume_lines(mount: HostMount) -> list[str]:
    return ["- hostPath:", f"    path: {mount.path}", f"    type: {mount.kind}", f"  name: {mount.name}"]


def _indented(lines: list[str], column: int) -> list[str]:
    return [f"{' ' * column}{line}\n" for line in lines]


def _column(sequence: yaml.Node | None) -> int:
    if not isinstance(sequence, yaml.SequenceNode) or sequence.flow_style:
        raise _UnsupportedLayoutError
    return int(sequence.start_mark.column)


def _last_line(node: yaml.Node) -> int:
    """Returns the last line of a node. The end mark of a block is at the next token."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1])
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        raise _UnsupportedLayoutError
    return int(node.end_mark.line)


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _value(node: yaml.Node, key: str) -> str:
    child = _child(node, key)
    return str(child.value) if isinstance(child, yaml.ScalarNode) else ""


def _host_path(volume: yaml.Node) -> str:
    child = _child(volume, "hostPath")
    return _value(child, "path") if child is not None else ""


# --- editing the document


def _pod(data: bytes, name: str) -> dict[str, Any]:
    try:
        pod = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OperatorError("invalid YAML", subject=name) from error
    if not isinstance(pod, dict) or not isinstance(pod.get("spec"), dict):
        raise OperatorError("not a Pod manifest", subject=name)
    return pod


def _container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    for container in pod["spec"].get("containers") or ():
        if isinstance(container, dict) and container.get("name") == CONTAINER:
            return container
    raise OperatorError(f"container {CONTAINER} not found", subject=name)


def _our_volumes(pod: dict[str, Any], wanted: EgressSetting) -> list[str]:
    volumes = pod["spec"].get("volumes") or ()
    return [volume["name"] for volume in volumes if _path_of(volume) in wanted.paths]


def _path_of(volume: dict[str, Any]) -> str:
    return str((volume.get("hostPath") or {}).get("path") or "")


def _added(pod: dict[str, Any], wanted: EgressSetting, name: str) -> dict[str, Any]:
    container = _container(pod, name)
    container.setdefault("args" if container.get("args") else "command", []).extend(wanted.arguments)
    for mount in wanted.mounts:
        seen = {"mountPath": mount.seen_as, "name": mount.name}
        container.setdefault("volumeMounts", []).append(
            {**seen, "readOnly": True} if mount.read_only else seen
        )
        volume = {"hostPath": {"path": mount.path, "type": mount.kind}, "name": mount.name}
        pod["spec"].setdefault("volumes", []).append(volume)
    return pod


def _removed(pod: dict[str, Any], wanted: EgressSetting, name: str) -> dict[str, Any]:
    names = set(_our_volumes(pod, wanted))
    container = _container(pod, name)
    for key in ("command", "args"):
        _keep(container, key, lambda word: word not in wanted.arguments)
    _keep(container, "volumeMounts", lambda mount: mount.get("name") not in names)
    _keep(pod["spec"], "volumes", lambda volume: volume.get("name") not in names)
    return pod


def _keep(owner: dict[str, Any], key: str, wanted: Callable[[Any], bool]) -> None:
    if key not in owner:
        return
    owner[key] = [entry for entry in owner[key] or () if wanted(entry)]
    if not owner[key]:
        del owner[key]


def _checked(data: bytes, wanted: EgressSetting, name: str) -> bytes:
    """Verifies that the added lines parse as intended."""
    if len(find_setting(data, wanted, name)) != len(wanted.arguments) + len(wanted.mounts):
        raise _UnsupportedLayoutError
    return data


def _dump(pod: dict[str, Any]) -> bytes:
    text: str = yaml.safe_dump(pod, default_flow_style=False, sort_keys=True, width=4096)
    return text.encode()
