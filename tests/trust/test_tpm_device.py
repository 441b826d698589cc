"""TPM connections: addresses, retries, leftover handles, invalid responses and concurrent use."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bootbridge.errors import OperatorError
from bootbridge.trust.measurement import RegisterFailed
from bootbridge.trust.tpm import commands
from bootbridge.trust.tpm import connection as connection_module
from bootbridge.trust.tpm.codec import MalformedTpmData, u8, u16, u32
from bootbridge.trust.tpm.connection import TpmConnection
from bootbridge.trust.tpm.device import TpmDevice, TpmUnreachable
from bootbridge.trust.tpm.register import TpmRegister
from bootbridge.trust.tpm.return_codes import OBJECT_MEMORY, RETRY, TpmError


def answered(code: int, body: bytes = b"") -> bytes:
    return u16(commands.ST_NO_SESSIONS) + u32(10 + len(body)) + u32(code) + body


class Script:
    """A TPM with fixed responses that records its commands."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = iter(answers)
        self.asked: list[commands.CommandCode] = []

    def exchange(self, command: bytes) -> bytes:
        self.asked.append(commands.CommandCode(int.from_bytes(command[6:10], "big")))
        return next(self._answers)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module.time, "sleep", lambda seconds: None)


@pytest.mark.parametrize(
    "address",
    ["", "tpm", "swtpm:x", "unix:", "unix:relative", "tcp:", "tcp:host", "tcp:host:0", "tcp::1", "tcp:h:x"],
)
def test_the_error_about_an_invalid_address_lists_the_valid_forms(address: str) -> None:
    with pytest.raises(OperatorError, match=r"node.yaml.*/dev/tpmrm0, unix:PATH or tcp:HOST:PORT"):
        TpmDevice(address, "node.yaml: evidence.tpm.device")


async def test_the_error_names_a_missing_device(tmp_path: Path) -> None:
    for address in (f"{tmp_path}/tpmrm0", f"unix:{tmp_path}/socket"):
        with pytest.raises(TpmUnreachable, match=f"TPM {address}: No such file.*its firmware enables it"):
            await TpmDevice(address).use(lambda chip: chip.describe())
    with pytest.raises(RegisterFailed, match="PCR 15: TPM"):
        await TpmRegister(TpmDevice(f"{tmp_path}/tpmrm0")).read()


def test_a_busy_tpm_is_retried(no_waiting: None) -> None:
    script = Script(answered(RETRY), answered(RETRY), answered(0))
    TpmConnection(script.exchange, shared=False).run(commands.flush(1))
    assert script.asked == [commands.CommandCode.FLUSH_CONTEXT] * 3


def test_retries_of_a_busy_tpm_are_limited(no_waiting: None) -> None:
    script = Script(*[answered(RETRY)] * 1000)
    with pytest.raises(TpmError, match="busy"):
        TpmConnection(script.exchange, shared=False).run(commands.flush(1))
    assert len(script.asked) < 1000


def test_behind_a_resource_manager_no_handles_are_flushed() -> None:
    script = Script(answered(OBJECT_MEMORY))
    with pytest.raises(TpmError, match="out of object memory"):
        TpmConnection(script.exchange, shared=True).measure(15, b"x")
    assert script.asked == [commands.CommandCode.PCR_EVENT]


def test_leftover_handles_are_flushed_without_a_resource_manager() -> None:
    left = u8(0) + u32(1) + u32(1) + u32(0x80000000)
    none = u8(0) + u32(1) + u32(0)
    script = Script(
        answered(OBJECT_MEMORY), answered(0, left), answered(0), answered(0, none), answered(0, bytes(4))
    )
    TpmConnection(script.exchange, shared=False).measure(15, b"x")
    event, listed, flush = (
        commands.CommandCode.PCR_EVENT,
        commands.CommandCode.GET_CAPABILITY,
        commands.CommandCode.FLUSH_CONTEXT,
    )
    assert script.asked == [event, listed, flush, listed, event]


def test_values_without_their_registers_are_refused() -> None:
    body = u32(0) + u32(0) + u32(1) + u16(32) + bytes(32)
    with pytest.raises(MalformedTpmData, match="0 PCRs, 1 values"):
        TpmConnection(Script(answered(0, body)).exchange, shared=False).read_pcrs([15])


class Listener:
    """Sends these bytes as the response to the first command of each connection."""

    def __init__(self, answer: bytes) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.device = TpmDevice(f"tcp:127.0.0.1:{self._socket.getsockname()[1]}")

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(self._answer)

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


@pytest.fixture(
    params=[b"", b"\x80\x01", u16(0x8001) + u32(2**31) + u32(0), u16(0x8001) + u32(9) + u32(0)],
    ids=["empty", "truncated header", "too long", "too short"],
)
def broken(request: pytest.FixtureRequest) -> Iterator[Listener]:
    listener = Listener(request.param)
    yield listener
    listener.close()


async def test_a_malformed_response_is_an_error(broken: Listener) -> None:
    with pytest.raises((TpmUnreachable, MalformedTpmData), match=r"before the response|response header"):
        await broken.device.use(lambda chip: chip.measure(15, b"x"))


class Threads(ThreadPoolExecutor):
    """Counts the submitted work, whether or not it was started."""

    begun = 0

    def submit(self, *given: Any, **more: Any) -> Any:
        self.begun += 1
        return super().submit(*given, **more)


async def turns() -> None:
    """Runs all tasks that are ready."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_uses_do_not_overlap_even_after_a_cancellation(tmp_path: Path) -> None:
    """A file replaces the TPM."""
    (tmp_path / "tpmrm0").touch()
    device = TpmDevice(f"{tmp_path}/tpmrm0")
    threads = Threads()
    asyncio.get_running_loop().set_default_executor(threads)
    leave = threading.Event()
    first = asyncio.ensure_future(device.use(lambda _: leave.wait()))
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(device.use(lambda _: "its turn"))
    await turns()
    begun = threads.begun
    leave.set()
    assert begun == 1, "the first was still inside"
    assert await second == "its turn"
    assert threads.begun == 2


async def test_cancelled_uses_of_a_slow_tpm_hold_no_threads(tmp_path: Path) -> None:
    """The threads are shared: otherwise DNS lookups would wait for the TPM."""
    (tmp_path / "tpmrm0").touch()
    device = TpmDevice(f"{tmp_path}/tpmrm0")
    resume = threading.Event()
    slow = asyncio.ensure_future(device.use(lambda _: resume.wait()))
    try:
        for _ in range(100):
            await asyncio.sleep(0)
            slow.cancel()
            await asyncio.wait([slow])
            slow = asyncio.ensure_future(device.use(lambda _: resume.wait()))
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(lambda: "a thread is free")
    finally:
        resume.set()
    assert await slow


async def test_a_slow_tpm_does_not_block_the_event_loop(tmp_path: Path) -> None:
    (tmp_path / "tpmrm0").touch()
    device = TpmDevice(f"{tmp_path}/tpmrm0")
    resume = threading.Event()
    use = asyncio.ensure_future(device.use(lambda _: resume.wait()))
    await asyncio.sleep(0)
    resume.set()  # a blocked event loop would not reach this line
    assert await use
