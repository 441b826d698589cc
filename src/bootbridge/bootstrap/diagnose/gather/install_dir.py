"""Reads the installer's directory: the bootstrap node's addresses and the ssh key."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bootbridge.bootstrap.diagnose.check.result import at
from bootbridge.common import data_url
from bootbridge.common.files import read_file
from bootbridge.errors import OperatorError

IGNITION_FILE = "bootstrap.ign"
HOST_KEY_PATH = re.compile(r"/etc/ssh/ssh_host_\w{1,20}_key\.pub")
HOST_KEY = re.compile(r"[a-z0-9@.-]{1,64} [A-Za-z0-9+/=]{16,4096}(?: [^\r\n]{0,256})?")
STATE_FILE = ".openshift_install_state.json"
KEY_FIELD = "*tls.BootstrapSSHKeyPair"
MACHINES = ".clusterapi_output"
MACHINE_PATTERN = "Machine-*-bootstrap.yaml"
# In the order in which they are tried; other types come last.
ADDRESS_TYPES = ("ExternalIP", "ExternalDNS", "InternalIP", "InternalDNS", "Hostname")


@dataclass(frozen=True)
class InstallDir:
    path: Path

    @classmethod
    def open(cls, text: str) -> InstallDir:
        path = Path(text)
        if not path.is_dir():
            hint = "give the directory that openshift-install was run with"
            raise OperatorError(f"directory not found: {text}", subject="--dir", hint=hint)
        return cls(path)

    @property
    def kubeconfig(self) -> Path:
        return self.path / "auth" / "kubeconfig"

    def addresses(self) -> list[str]:
        """Returns the bootstrap node's addresses in the order in which to try them."""
        files = sorted((self.path / MACHINES).glob(MACHINE_PATTERN))
        if not files:
            hint = "give the address with --bootstrap HOST"
            text = f"file not found: {MACHINES}/{MACHINE_PATTERN}, which has the bootstrap node's address"
            raise OperatorError(text, subject=str(self.path), hint=hint)
        found = [entry for file in files for entry in _addresses_in(file)]
        if not found:
            hint = "give the address with --bootstrap HOST"
            raise OperatorError("required field missing: status.addresses", subject=str(files[-1]), hint=hint)
        found.sort(key=lambda entry: entry[0])
        return list(dict.fromkeys(address for _, address in found))

    def ssh_key(self) -> SshKey | None:
        """Returns the key that the installer generated for the bootstrap node, or None."""
        path = self.path / STATE_FILE
        if not path.exists():
            return None
        try:
            state = json.loads(read_file(path))
        except ValueError:
            raise OperatorError(
                "invalid JSON", subject=str(path), hint="give a key with --key FILE"
            ) from None
        given = at(state, KEY_FIELD, "Priv")
        return SshKey(_decoded(given, path)) if given else None

    def host_keys(self) -> tuple[str, ...]:
        """Returns the public host keys that bootstrap.ign writes to the node; none if it has none."""
        path = self.path / IGNITION_FILE
        if not path.exists():
            return ()
        try:
            files = at(json.loads(read_file(path)), "storage", "files")
            found = [_host_key(each) for each in files if isinstance(each, dict)] if files else []
        except (ValueError, TypeError):
            hint = "give the node's host key with --known-hosts FILE"
            raise OperatorError("invalid host key or JSON", subject=str(path), hint=hint) from None
        return tuple(filter(None, found))


@dataclass(frozen=True)
class SshKey:
    """A private key; not in `repr`."""

    pem: bytes = field(repr=False)


def _host_key(file: dict[str, Any]) -> str:
    """Returns the public key in a file of the ignition file; empty for another file."""
    if not HOST_KEY_PATH.fullmatch(str(file.get("path"))):
        return ""
    text = data_url.decode(str(at(file, "contents", "source"))).decode().strip()
    if not HOST_KEY.fullmatch(text):
        raise ValueError(file.get("path"))
    return text


def _decoded(given: Any, path: Path) -> bytes:
    try:
        pem = base64.b64decode(str(given), validate=True)
    except binascii.Error:
        pem = b""
    if b"PRIVATE KEY" not in pem:
        hint = "give a key with --key FILE"
        raise OperatorError(f'["{KEY_FIELD}"]["Priv"] is not a private key', subject=str(path), hint=hint)
    return pem.rstrip(b"\n") + b"\n"


def _addresses_in(file: Path) -> list[tuple[int, str]]:
    try:
        document = yaml.safe_load(read_file(file))
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        hint = "give the address with --bootstrap HOST"
        raise OperatorError("invalid YAML", subject=str(file), hint=hint) from None
    given = at(document, "status", "addresses")
    entries = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    return [(_rank(each.get("type")), str(each["address"])) for each in entries if each.get("address")]


def _rank(kind: object) -> int:
    return ADDRESS_TYPES.index(kind) if kind in ADDRESS_TYPES else len(ADDRESS_TYPES)
