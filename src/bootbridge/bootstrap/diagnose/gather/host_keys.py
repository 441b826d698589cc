"""Which host key of the bootstrap node ssh accepts.

In this order: the operator's file (--known-hosts); the public host keys that bootstrap.ign writes to the
node; ssh's own known_hosts, and the key that an earlier run accepted with --accept-new-host-key, which is
stored in the installer's directory. A key that is in none of them is refused, and a changed one always.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bootbridge.common.files import Asset, read_file, write_file

RECORD_FILE: Final = "bootbridge-known-hosts"
# The name of the node in a file that we write for ssh, so that it applies to each of the node's addresses.
_ALIAS: Final = "bootbridge-bootstrap-node"
_USERS_FILES: Final = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_UNKNOWN: Final = re.compile(r"No \S{1,20} host key is known for")
_CHANGED: Final = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_CONSOLE: Final = (
    "on the node's console, ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub prints its fingerprint"
)


@dataclass(frozen=True)
class HostKeys:
    """`expected` are public keys as in /etc/ssh/ssh_host_*_key.pub; `record` is where a new one is stored."""

    known_hosts: Path | None = None
    expected: tuple[str, ...] = ()
    record: Path | None = None
    accept_new: bool = False

    def options(self, folder: Path) -> dict[str, str]:
        """Returns the options for ssh; writes its known_hosts to `folder`, which is private."""
        file = folder / "known_hosts"
        options = {
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(file),
            "GlobalKnownHostsFile": "/dev/null",
            "NoHostAuthenticationForLocalhost": "no",
            "VerifyHostKeyDNS": "no",
            "UpdateHostKeys": "no",
            "HashKnownHosts": "no",
        }
        if self.known_hosts:
            _write(file, read_file(self.known_hosts, "--known-hosts"))
        elif self.expected:
            _write(file, "".join(f"{_ALIAS} {key}\n" for key in self.expected).encode())
            options["HostKeyAlias"] = _ALIAS
        else:
            _write(file, read_file(self.record) if self.record and self.record.exists() else b"")
            options["UserKnownHostsFile"] = f"{file} {_USERS_FILES}"
            del options["GlobalKnownHostsFile"]
            if self.accept_new:
                options["StrictHostKeyChecking"] = "accept-new"
        return options

    def store_accepted(self, folder: Path) -> None:
        """Stores a key that ssh has accepted in this run."""
        file = folder / "known_hosts"
        if not (self.record and self.accept_new and file.exists()):
            return
        before = self.record.read_bytes() if self.record.exists() else b""
        if (found := file.read_bytes()) != before:
            write_file(self.record, Asset(found, 0o644))


def refusal(message: str) -> tuple[str, str] | None:
    """Returns problem and fix if ssh's message reports a host key that it refused."""
    if _CHANGED in message:
        fix = f"another machine answers at this address; verify its key ({_CONSOLE}) and give it with"
        return "host key changed", f"{fix} --known-hosts FILE"
    if _UNKNOWN.search(message):
        fix = f"give it with --known-hosts FILE ({_CONSOLE}), or add --accept-new-host-key to trust the key"
        return "host key unknown", f"{fix} of the first connection"
    if "Host key verification failed" in message:
        return "host key verification failed", f"give the node's key with --known-hosts FILE ({_CONSOLE})"
    return None


def _write(file: Path, data: bytes) -> None:
    if not file.exists():
        write_file(file, Asset(data, 0o600))
