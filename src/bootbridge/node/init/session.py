"""One `bootbridge node init`, from the user's files to the user's kubeconfig.

Which init it is stands in a file beside the kubeconfig until the end is known: the same command again
watches the same init.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

import yaml

from bootbridge.common.backoff import Backoff
from bootbridge.common.files import Asset, read_file, write_file
from bootbridge.common.secret_files import read_secret
from bootbridge.common.yaml_text import YAML_ERRORS
from bootbridge.errors import BootbridgeError, OperatorError
from bootbridge.join_api.cluster_spec import ClusterSpec
from bootbridge.join_api.policy import ClusterFacts, JoinPolicy, parse_policy, with_cluster
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
from bootbridge.trust.evidence import EvidenceRefused, Verifier
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
    # What the instance must prove, where the policy's own evidence is not it.
    evidence: Path | None = None
    tunnel: bool = False
    # Watch this init; empty: a new one, or the one that the record names.
    resume: str = ""
    reach_seconds: float = REACH_SECONDS

    @property
    def record(self) -> Path:
        return self.kubeconfig.with_name(self.kubeconfig.name + ".init")

    @property
    def log(self) -> Path:
        return self.kubeconfig.with_name(self.kubeconfig.name + ".log")


class InitSession:
    """Everything that can be wrong with the user's files is found before the instance is called."""

    def __init__(self, options: InitOptions, report: InitReport) -> None:
        self._options = options
        self._report = report
        recorded = _recorded(options)
        self._init_id = options.resume or recorded or secrets.token_hex(INIT_ID_BYTES)
        if not (options.resume or recorded):
            _refuse_to_overwrite(options.kubeconfig)
        _check_directory(options.kubeconfig)
        spec = _spec(options)
        document = _policy(options, spec)
        policy = parse_policy(document)
        self._instances = policy.instances
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
                join_policy=_as_sent(document),
            ),
            report,
            Backoff(SystemRandom(), least=0.2, first=1.0, most=15.0),
            options.reach_seconds,
            self._keep,
        )

    @property
    def init_id(self) -> str:
        return self._init_id

    @property
    def may_go_on(self) -> bool:
        """Whether the init may be going on without us."""
        return self._client.begun

    async def run(self) -> bool:
        """Whether there is a cluster now; every other end is reported."""
        _remember(self._options, self._init_id)
        self._report.begun(self._init_id)
        ticking = tasks.spawn(self._ticking(), "init: ticking")
        try:
            await self._client.run()
        except InitFailed as failure:
            self._options.record.unlink(missing_ok=True)
            again = "the same instance may be asked again" if failure.may_retry else ""
            advice = "; ".join(filter(None, (failure.advice, again)))
            self._report.failed(str(failure), advice, self._write_log(failure.log))
        except InitRefused as refusal:
            self._report.failed(f"the instance refused: {refusal}", refusal.advice, "")
        except EvidenceRefused as refusal:
            self._report.failed(str(refusal), _PROOF_ADVICE, "")
        except InstanceUnreachable as silence:
            self._report.failed(f"the instance cannot be reached: {silence}", _silence_advice(silence), "")
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
            # It may still be another machine on the way: only a control plane is told secrets.
            assert channel.peer is not None, "some kind of evidence is always demanded"
            control_plane_keys.refuse_others(
                channel.peer, self._instances, called="the instance", by="--policy"
            )
        except EvidenceRefused:
            await channel.close()
            raise
        return channel

    def _keep(self, success: InitSuccess) -> None:
        kubeconfig = with_server_host(success.kubeconfig, self._options.host)
        write_file(self._options.kubeconfig, Asset(kubeconfig, 0o600))
        self._report.succeeded(success.cluster_id, str(self._options.kubeconfig))

    def _write_log(self, log: bytes) -> str:
        if not log:
            return ""
        write_file(self._options.log, Asset(log, 0o600))
        return str(self._options.log)


_PROOF_ADVICE: Final = "do not trust this instance, or let the policy given by --policy expect what it shows"


def _silence_advice(silence: InstanceUnreachable) -> str:
    if silence.begun:
        return "the init may be going on: run the same command again to watch it"
    return "see that the instance runs `bootbridge node run` and that its port can be reached from here"


# --- the user's files


def _spec(options: InitOptions) -> ClusterSpec:
    spec = ClusterSpec.load(_document(options.spec, "--spec"), f"--spec: {options.spec}")
    # The kubeconfig will name the host that the instance was reached at, so the API server must answer to it.
    if options.host not in spec.api_server_sans:
        spec = replace(spec, api_server_sans=(*spec.api_server_sans, options.host))
    return replace(spec, tunnel=True) if options.tunnel else spec


def _policy(options: InitOptions, spec: ClusterSpec) -> bytes:
    """Read as the join service will read it: what is wrong with it must not wait until then."""
    facts = ClusterFacts.of(spec, f"{options.host}:6443")
    return with_cluster(read_file(options.policy, "--policy"), facts, "--policy")


def _as_sent(policy: bytes) -> bytes:
    """The facts of the cluster are not ours to say."""
    document = json.loads(policy)
    del document["cluster"]
    return json.dumps(document).encode()


def _verifiers(options: InitOptions, policy: JoinPolicy) -> tuple[Verifier, ...]:
    """The policy's are made in any case: what is wrong with them would be found when nobody can join."""
    enrolled = frozenset(each.identity for each in policy.instances if each.identity)
    is_enrolled = enrolled.__contains__ if enrolled or options.evidence else None
    theirs = verifiers_from(policy.evidence, "--policy: evidence", is_enrolled=is_enrolled)
    if options.evidence is None:
        return theirs
    verifiers = verifiers_from(_document(options.evidence, "--evidence"), "--evidence")
    if not verifiers:
        raise OperatorError("no kind of evidence is asked for", subject="--evidence")
    return verifiers


def _document(path: Path, flag: str) -> Any:
    data = read_file(path, flag)
    try:
        return yaml.safe_load(data)
    # Without the cause: a policy may hold tokens, and the error's text quotes the file.
    except YAML_ERRORS:
        raise OperatorError(f"{path} is neither YAML nor JSON", subject=flag) from None


def _refuse_to_overwrite(kubeconfig: Path) -> None:
    if kubeconfig.exists():
        hint = "name another file, or move that one away"
        raise OperatorError(f"{kubeconfig} is there already", subject="--kubeconfig", hint=hint)


def _check_directory(kubeconfig: Path) -> None:
    """An init cannot be repeated for the sake of its result."""
    if not os.access(kubeconfig.parent, os.W_OK | os.X_OK):
        hint = "name a file in a directory that exists and is writable"
        raise OperatorError(f"cannot write to {kubeconfig.parent}", subject="--kubeconfig", hint=hint)


# --- which init it is


def _recorded(options: InitOptions) -> str:
    """The ID of an init at this very endpoint whose end was not seen; empty if there is none."""
    try:
        document = json.loads(options.record.read_bytes())
        same = document["endpoint"] == [options.host, options.port]
        return str(document["initID"]) if same else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def _remember(options: InitOptions, init_id: str) -> None:
    document = {"initID": init_id, "endpoint": [options.host, options.port]}
    write_file(options.record, Asset(json.dumps(document).encode() + b"\n", 0o600))
