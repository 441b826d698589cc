"""Callers: scripted clients of the two frontends. They share only the codecs with the cores."""

from __future__ import annotations

from collections import deque

from bootbridge.runtime.http2_transport import Http2Transport
from bootbridge.wire import grpc_messages as grpc
from bootbridge.wire import packets as p
from bootbridge.wire.frames import CANCEL
from bootbridge.wire.hpack_headers import Headers
from bootbridge.wire.http2_stream import Stream
from tests.sim.exchange import Exchange, payload
from tests.support.sim_environment import Environment, SimPump, Violation
from tests.support.sim_network import SimPort

PROXY_PATH = "/ProxyService/Proxy"


class Caller:
    """The upload, the download and the end of an exchange, for both dialects."""

    def __init__(self, env: Environment, pump: SimPump, exchange: Exchange) -> None:
        self.env = env
        self.pump = pump
        self.exchange = exchange
        self.plan = exchange.plan
        self.sent = 0
        self.received = 0
        self.asked_at: float | None = None
        self.answered_at: float | None = None
        self.answer = ""  # "ok" or the refusal
        self.ended = False  # it has ended the upload, in order
        self.saw_end = False
        self.over = False
        self.over_at = 0.0
        self.outcome = ""  # end (orderly), left (by the caller), refused, lost
        self._waiting = False
        exchange.caller = self
        if self.plan.give_up_after is not None:
            pump.soon(self.plan.give_up_after, self._give_up)
        if self.plan.caller_stall is not None:
            begin, duration = self.plan.caller_stall
            pump.soon(begin, lambda: self._stall(duration))

    def __repr__(self) -> str:
        state = self.outcome if self.over else "open" if self.answer else "dialling"
        return f"<{type(self).__name__} {state} sent {self.sent} got {self.received}>"

    # --- implemented by each dialect

    def hold(self) -> None: ...
    def go_on(self) -> None: ...
    def room(self) -> bool:
        raise NotImplementedError

    def put(self, data: bytes) -> None:
        raise NotImplementedError

    def end_upload(self) -> None:
        """Half-close."""

    def close(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    # --- the script

    def _stall(self, duration: float) -> None:
        if not self.over:
            self.exchange.excuses.add("stalled")
            self.hold()
            self.pump.soon(duration, self._unstall)

    def _unstall(self) -> None:
        if not self.over:
            self.go_on()

    def _give_up(self) -> None:
        if not self.over:
            if self.plan.give_up_how == "abort":
                self.exchange.excuses.add("caller broke")
                self.finish("left")
                self.abort()
            else:
                self.leave()

    def leave(self) -> None:
        self.ended = True
        self.finish("left")
        self.close()

    def finish(self, outcome: str) -> None:
        if not self.over:
            self.over = True
            self.over_at = self.env.now
            self.outcome = outcome
            self.env.trace(f"exchange {self.exchange.id} over: {outcome} {self.answer}")

    def answered(self, answer: str) -> None:
        self.answered_at = self.env.now
        self.answer = answer
        if answer != "ok":
            self.finish("refused")

    def send_upload(self) -> None:
        """Sends the next pieces of the upload while there is room for them."""
        plan = self.plan
        while not self.over and self.sent < plan.up and not self._waiting and self.room():
            size = min(plan.up - self.sent, self.env.count(1, 3000))
            data = payload(self.exchange.up_key, self.sent, size)
            self.sent += size
            self.put(data)
            if plan.pause:
                self._waiting = True
                self.pump.soon(plan.pause * self.env.random(), self._continue_sending)
        if self.sent >= plan.up and not self.over and not self.ended:
            self._end_upload_if_done()

    def _continue_sending(self) -> None:
        self._waiting = False
        self.send_upload()

    def _end_upload_if_done(self) -> None:
        if self.plan.hasty or self.saw_end:
            self.leave()
        elif self.plan.half_close:
            self.ended = True
            self.end_upload()
        else:
            self._leave_if_done()

    def on_download(self, data: memoryview) -> None:
        if self.answer != "ok":
            raise Violation(5, f"{self.exchange}: bytes came before the answer")
        if self.over:
            return
        self.exchange.check_down(self.received, data)
        self.received += len(data)
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        """Leaves when everything was sent and received, unless the endpoint ends it."""
        plan = self.plan
        if self.ended or self.sent < plan.up or (self.answer != "ok" and not plan.hasty):
            return
        if self.saw_end:
            self.leave()
        elif plan.kind in ("quitter", "resetter"):
            return
        elif plan.kind == "sink" or (plan.parting == "wait" and self.received >= self.expected):
            self.leave()

    @property
    def expected(self) -> int:
        plan = self.plan
        return plan.banner + (plan.up if plan.kind == "echo" else plan.down)

    def on_download_end(self) -> None:
        """The download ended, in order."""
        if not self.over:
            self.exchange.caller_saw_end()
            self.saw_end = True
            if self.plan.supports_half_close and not self.ended and self.sent < self.plan.up:
                return  # the upload may continue
            self.ended = True
            self.finish("end")
            self.close()

    def lost(self, reason: str) -> None:
        self.env.trace(f"exchange {self.exchange.id} lost: {reason}")
        self.finish("lost")


class ConnectCaller(Caller):
    """HTTP CONNECT on a byte stream."""

    def __init__(self, env: Environment, port: SimPort, exchange: Exchange) -> None:
        super().__init__(env, port.pump, exchange)
        self._port = port
        self._head = b""
        self._eof = False
        address = exchange.address
        head = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
        port.start(self)
        self.asked_at = env.now
        port.write(head)
        if self.plan.early:
            self.send_upload()

    def hold(self) -> None:
        self._port.pause_reading()

    def go_on(self) -> None:
        self._port.resume_reading()

    def room(self) -> bool:
        return self._port.backlog < 2048 and (self.answer == "ok" or self.plan.early)

    def put(self, data: bytes) -> None:
        self._port.write(data)

    def end_upload(self) -> None:
        self._port.finish()

    def close(self) -> None:
        self._port.close()

    def abort(self) -> None:
        self._port.abort()

    # --- ByteHandler

    def on_bytes(self, data: memoryview) -> None:
        if self.answer == "ok":
            self.on_download(data)
            return
        self._head += bytes(data)
        if not b"HTTP/1.1 ".startswith(self._head[:9]):
            raise Violation(5, f"{self.exchange}: {self._head[:40]!r} came instead of an answer")
        head, blank, rest = self._head.partition(b"\r\n\r\n")
        if blank and not self.answer:
            status = head[9:12].decode()
            self.answered("ok" if status == "200" else status)
            if status != "200":
                self._port.close()
                return
            if rest:
                self.on_download(memoryview(rest))
            self.send_upload()

    def on_drained(self) -> None:
        self.send_upload()

    def on_eof(self, gone: bool) -> None:
        if self.over:
            return
        if not self.answer:
            if not self.ended and "server crashed" not in self.exchange.excuses:
                raise Violation(3, f"{self.exchange}: closed without an answer")
            self.finish("lost")
            self._port.close()
            return
        self.on_download_end()

    def on_lost(self, reason: str) -> None:
        self.lost(reason)


class GrpcCaller(Caller):
    """One Proxy stream on a transport, as Konnectivity's client library uses it."""

    def __init__(
        self, env: Environment, pump: SimPump, transport: Http2Transport, exchange: Exchange
    ) -> None:
        super().__init__(env, pump, exchange)
        self._transport = transport
        self._reader = grpc.MessageReader(self._on_message)
        self._queue: deque[bytes] = deque()
        self._connect_id = 0
        self._random = env.count(1, 1 << 40)
        self._closed = False
        self._close_sent = False
        headers = grpc.request_headers(PROXY_PATH, "server")
        self._stream: Stream
        transport.http2.open_stream(headers, self._opened)
        self.asked_at = env.now
        self._send_packet(p.DialRequest("tcp", exchange.address, self._random))

    def _opened(self, stream: Stream) -> GrpcCaller:
        self._stream = stream
        return self

    def hold(self) -> None:
        self._stream.pause_reading()

    def go_on(self) -> None:
        self._stream.resume_reading()

    def room(self) -> bool:
        return self.answer == "ok" and not self._queue and self._stream.ready

    def put(self, data: bytes) -> None:
        self._send_packet(p.Data(self._connect_id, data))

    def _send_packet(self, packet: p.Packet) -> None:
        body = p.encode(packet)
        self._queue.append(grpc.message_prefix(len(body)) + body)
        self._push()

    def _push(self) -> None:
        while self._queue and self._stream.ready:
            self._stream.send(self._queue.popleft())

    def close(self) -> None:
        self._stream.resume_reading()  # to receive the answer to its close
        if self._closed:
            self._reset_later()
        elif self.answer == "ok":
            self._close_sent = True
            self._send_packet(p.CloseRequest(self._connect_id))
        else:
            self._send_packet(p.CloseDial(self._random))
            self.pump.soon(0.05, self.abort)

    def _reset_later(self) -> None:
        """Resets after 20 ms, so that a packet after the close is still detected."""
        self.pump.soon(0.02, self.abort)

    def abort(self) -> None:
        self._stream.reset(CANCEL)

    # --- StreamHandler

    def on_headers(self, headers: Headers, end: bool) -> None: ...

    def on_data(self, buffer: p.Buffer, start: int, end: int) -> None:
        self._reader.receive(buffer, start, end)

    def on_ready(self) -> None:
        self._push()
        self.send_upload()

    def on_end(self) -> None:
        if not self.answer and not self.over and "server crashed" not in self.exchange.excuses:
            raise Violation(3, f"{self.exchange}: the stream ended without an answer")
        self.lost("stream ended")

    def on_reset(self, code: int, reason: str) -> None:
        self.lost(reason)

    def _on_message(self, buffer: p.Buffer, start: int, end: int) -> None:
        packet = p.decode(bytes(buffer[start:end]))
        match packet:
            case p.DialResponse(error, connect_id, random):
                self._on_answer(error, connect_id, random)
            case p.Data(connect_id, data):
                if self.over and not self.answer:
                    return  # it cancelled the dial, and the answer was already in flight
                if connect_id != self._connect_id or self.answer != "ok":
                    raise Violation(2, f"{self.exchange} got DATA of connection {connect_id}")
                if self._closed:
                    raise Violation(5, f"{self.exchange} got DATA after the close")
                self.on_download(memoryview(data))
            case p.CloseResponse(error, connect_id):
                self._on_close(error, connect_id)
            case _:
                raise Violation(5, f"{self.exchange} got {packet}")

    def _on_answer(self, error: str, connect_id: int, random: int) -> None:
        if random != self._random or self.answer:
            raise Violation(5, f"{self.exchange} got a wrong or second answer")
        self._connect_id = connect_id
        if self.over:
            return
        self.answered(error or "ok")
        if error:
            self._stream.reset(CANCEL)
        self.send_upload()

    def _on_close(self, error: str, connect_id: int) -> None:
        if connect_id != self._connect_id:
            raise Violation(2, f"{self.exchange} got a CLOSE of connection {connect_id}")
        if self._closed:
            raise Violation(5, f"{self.exchange} got two CLOSE_RSP")
        self._closed = True
        if self._close_sent:
            self._reset_later()
        elif error:
            self.lost(error)
            self._reset_later()
        else:
            self.on_download_end()
