"""One run of `bootbridge node init`, from the operator's files to the admin kubeconfig.

The init ID is stored in a file beside the kubeconfig until the outcome is known, so that running the same
command again watches the same init.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Final

from bootbridge.common import documents
from bootbridge.common.backoff import Backoff
from bootbridge.common.files import Asset, read_file, write_file
from bootbridge.common.secret_files import read_secret
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.instance import Role
from bootbridge.join_api.policy import OperatorPolicy, load_operator_policy
from bootbridge.node.init.admin_kubeconfig import with_server_host
from bootbridge.node.init.client import (
    REACH_SECONDS,
    InitClient,
    InitFailed,
    InitRefused,
    InstanceUnreachable,
)
from bootbridge.node.init.master_secret import MasterSecret
from bootbridge.node.init.messages import INIT_LABEL, InitRequest, InitSuccess
from bootbridge.node.init.report import InitReport
from bootbridge.node.join import control_plane_keys
from bootbridge.runtime import tasks
from bootbridge.runtime.concurrency import cancel_and_wait
from bootbridge.trust.attested.channel import Attestation, AttestedChannel, connect
from bootbridge.trust.evidence import AttestedPeer, EvidenceRefused, Verifier
from bootbridge.trust.evidence.configuration import verifiers_from

INIT_ID_BYTES: Final = 8
TICK_SECONDS: Final = 1.0


@dataclass(frozen=True)
class InitOptions:
    host: str
    port: int
    spec: Path
    policy: Path
    init_secret: Path
    secrets: Path
    kubeconfig: Path
    # The evidence required of the instance, if not the one in the policy.
    evidence: Path | None = None
    tunnel: bool = False
    # The ID of the init to watch; empty: a new one, or the recorded one.
    resume: str = ""
    reach_seconds: float = REACH_SECONDS

    @property
    def record(self) -> Path:
        return self.kubeconfig.with_name(self.kubeconfig.name + ".init")

    @property
    def log(self) -> Path:
        return self.kubeconfig.with_name(self.kubeconfig.name + ".log")


class InitSession:
    """Validates all files before connecting to the instance."""

    def __init__(self, options: InitOptions, report: InitReport) -> None:
        self._options = options
        self._report = report
        recorded = _recorded_init_id(options)
        self._init_id = options.resume or recorded or secrets.token_hex(INIT_ID_BYTES)
        if not (options.resume or recorded):
            _require_new_file(options.kubeconfig)
        _require_writable_directory(options.kubeconfig)
        spec = _spec(options)
        policy, join_policy = load_operator_policy(read_file(options.policy, "--policy"), str(options.policy))
        self._policy = policy
        self._verifiers = _verifiers(options, policy)
        init_secret = read_secret(options.init_secret, "--init-secret-file").strip()
        master = MasterSecret.load_or_create(options.secrets)
        self._client = InitClient(
            self._dial,
            InitRequest(
                init_id=self._init_id,
                init_secret=init_secret,
                measurement_secret=master.measurement_secret,
                measurement_salt=master.measurement_salt,
                cluster_spec=spec.dump(),
                join_policy=join_policy,
            ),
            report,
            Backoff(SystemRandom(), least=0.2, first=1.0, most=15.0),
            options.reach_seconds,
            self._store,
        )

    @property
    def init_id(self) -> str:
        return self._init_id

    @property
    def may_be_running(self) -> bool:
        """Whether the init may be running on the instance."""
        return self._client.request_sent

    async def run(self) -> bool:
        """Returns whether the init succeeded; reports every other outcome."""
        _record_init_id(self._options, self._init_id)
        self._report.started(self._init_id)
        ticking = tasks.spawn(self._ticking(), "init: ticking")
        try:
            await self._client.run()
        except InitFailed as failure:
            self._options.record.unlink(missing_ok=True)
            again = "nothing was changed on the instance" if failure.may_retry else ""
            advice = "; ".join(filter(None, (failure.advice, again)))
            self._report.failed(str(failure), advice, self._write_log(failure.log))
        except InitRefused as refusal:
            self._report.failed(f"instance rejected the request: {refusal}", refusal.advice, "")
        except EvidenceRefused as refusal:
            self._report.failed(str(refusal), _EVIDENCE_ADVICE, "")
        except InstanceUnreachable as unreachable:
            self._report.failed(f"instance unreachable: {unreachable}", _advice(unreachable), "")
        except BootbridgeError as error:
            self._report.failed(str(error), "run the same command again", "")
        else:
            self._options.record.unlink(missing_ok=True)
            return True
        finally:
            await cancel_and_wait(ticking)
        return False

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._report.tick()

    async def _dial(self) -> AttestedChannel:
        channel = await connect(
            self._options.host,
            self._options.port,
            label=INIT_LABEL,
            attestation=Attestation(verifiers=self._verifiers),
        )
        try:
            # Another machine with valid evidence may have answered: only a control plane gets secrets.
            assert channel.peer is not None, "evidence is always required"
            control_plane_keys.require_control_plane_key(
                channel.peer, self._policy.instances, subject="instance", source="--policy"
            )
            self._require_kind(channel.peer)
        except EvidenceRefused:
            await channel.close()
            raise
        return channel

    def _require_kind(self, peer: AttestedPeer) -> None:
        """As for a control plane's ticket; with --evidence that file decides which kinds are accepted."""
        if self._options.evidence is not None:
            return
        if problem := self._policy.kind_problem(peer.kind, Role.CONTROL_PLANE):
            raise EvidenceRefused(f"instance: {problem}")

    def _store(self, success: InitSuccess) -> None:
        kubeconfig = with_server_host(success.kubeconfig, self._options.host)
        write_file(self._options.kubeconfig, Asset(kubeconfig, 0o600))
        self._report.succeeded(success.cluster_id, str(self._options.kubeconfig))

    def _write_log(self, log: bytes) -> str:
        if not log:
            return ""
        write_file(self._options.log, Asset(log, 0o600))
        return str(self._options.log)


_EVIDENCE_ADVICE: Final = "do not trust this instance, or correct the file given by --policy"


def _advice(unreachable: InstanceUnreachable) -> str:
    if unreachable.request_sent:
        return "the init may be running: run the same command again to watch it"
    return "check that the instance runs `bootbridge node run` and that its port is reachable from here"


# --- input files


def _spec(options: InitOptions) -> ClusterSpec:
    spec = documents.read(ClusterSpec, options.spec, "--spec")
    # The kubeconfig will name the host that the instance was reached at, so the API server must answer to it.
    if options.host not in spec.api_server_sans:
        spec = replace(spec, api_server_sans=(*spec.api_server_sans, options.host))
    try:
        return replace(spec, tunnel=True) if options.tunnel else spec
    except OperatorError as error:
        raise documents.named(error, str(options.spec)) from None


def _verifiers(options: InitOptions, policy: OperatorPolicy) -> tuple[Verifier, ...]:
    """Builds the policy's in any case: an error in it would be found only when nodes try to join."""
    enrolled = frozenset(each.identity for each in policy.instances if each.identity)
    is_enrolled = enrolled.__contains__ if enrolled or options.evidence else None
    from_policy = policy.evidence.verifiers(f"{options.policy}: evidence.", is_enrolled=is_enrolled)
    if options.evidence is None:
        return from_policy
    name = str(options.evidence)
    verifiers = verifiers_from(documents.parse(read_file(options.evidence, "--evidence"), name), name)
    if not verifiers:
        raise OperatorError("at least one kind of evidence is required", subject=name)
    return verifiers


def _require_new_file(kubeconfig: Path) -> None:
    if kubeconfig.exists():
        hint = "choose another file, or move the existing one"
        raise OperatorError(f"file exists: {str(kubeconfig)!r}", subject="--kubeconfig", hint=hint)


def _require_writable_directory(kubeconfig: Path) -> None:
    """Checked first, because an init cannot be repeated if storing its result fails."""
    if not os.access(kubeconfig.parent, os.W_OK | os.X_OK):
        hint = "choose a file in an existing, writable directory"
        raise OperatorError(
            f"directory not writable: {str(kubeconfig.parent)!r}", subject="--kubeconfig", hint=hint
        )


# --- init ID


def _recorded_init_id(options: InitOptions) -> str:
    """Returns the ID of an unfinished init at the same endpoint; empty if there is none."""
    try:
        document = json.loads(options.record.read_bytes())
        same = document["endpoint"] == [options.host, options.port]
        return str(document["initID"]) if same else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _record_init_id(options: InitOptions, init_id: str) -> None:
    document = {"initID": init_id, "endpoint": [options.host, options.port]}
    write_file(options.record, Asset(json.dumps(document).encode() + b"\n", 0o600))
