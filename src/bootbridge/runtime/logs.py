"""Logging: one line per event, as `text` or `json`.

    2026-11-16T00:00:00.000Z INFO server: agent connected agent=node-7 agents=2

Peers choose many of the logged values, so characters that could break a line, forge a field or
control a terminal are escaped. `--v` applies to our own loggers only: libraries log warnings and
errors at any verbosity, because their debug lines contain what they process (hpack's: bearer tokens).
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import time

from bootbridge.common.field_names import camel_case
from bootbridge.errors import OperatorError
from bootbridge.runtime.line_writer import LineWriter

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

# klog levels of 5 and above are upstream's debug messages.
DEBUG_VERBOSITY = 5

# The parent of all our loggers; lines show the names without it.
_OURS = "bootbridge."

_PLAIN = re.compile(r"[^\s\"'=\\]+")


def event(logger_name: str, level: int, message: str, /, **fields: object) -> None:
    """Logs an event: a constant message, and everything variable in `fields`."""
    logger = logging.getLogger(_OURS + logger_name)
    if logger.isEnabledFor(level):
        logger.log(level, "%s", message, extra={"fields": fields})


def debug_enabled(logger_name: str) -> bool:
    return logging.getLogger(_OURS + logger_name).isEnabledFor(DEBUG)


def configure(
    log_format: str = "text",
    verbosity: int = 0,
    program: str = "",
    *,
    log_file: str = "",
    logtostderr: bool = True,
) -> None:
    """Sends all logging to stderr, or to `log_file` without `logtostderr`; may be called again."""
    formatters = {"text": TextFormatter, "json": JsonFormatter}
    if log_format not in formatters:
        raise OperatorError(
            f"unknown log format {log_format!r}", subject="--log-format", hint="use text or json"
        )
    handler = _handler(log_file if not logtostderr else "", formatters[log_format](program))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, LineFormatter)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(WARNING)
    logging.getLogger(_OURS.removesuffix(".")).setLevel(DEBUG if verbosity >= DEBUG_VERBOSITY else INFO)
    # A closed stderr must not cause tracebacks.
    logging.raiseExceptions = False


def dropped_lines() -> int:
    """How many lines were lost, because the reader of the log did not read."""
    return sum(handler.writer.dropped for handler in _queue_handlers())


def flush() -> None:
    """Waits until the log is written, for at most a second: for the moment before an exit."""
    for handler in _queue_handlers():
        handler.flush()


def _queue_handlers() -> list[QueueHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, QueueHandler)]


def _handler(log_file: str, formatter: LineFormatter) -> logging.Handler:
    if log_file:
        return QueueHandler(_open(log_file), formatter, owns_fd=True)
    try:
        return QueueHandler(sys.stderr.fileno(), formatter, owns_fd=False)
    except (AttributeError, io.UnsupportedOperation):  # closed, or in memory: it cannot block
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter)
        return handler


def _open(log_file: str) -> int:
    try:
        return os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OperatorError(
            f"cannot write {log_file}: {error.strerror}",
            subject="--log-file",
            hint="use a file in a writable directory",
        ) from error


class QueueHandler(logging.Handler):
    """Passes lines to a thread that writes them: a log that is not read never blocks the process."""

    def __init__(self, fd: int, formatter: LineFormatter, *, owns_fd: bool) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._fd = fd
        self._owns_fd = owns_fd
        self.writer = LineWriter(fd, self._dropped_line)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.writer.write(self._line(record))
        except Exception:  # for example a library's message with wrong arguments: its caller goes on
            self.handleError(record)

    def _line(self, record: logging.LogRecord) -> bytes:
        return self.format(record).encode(errors="backslashreplace") + b"\n"

    def _dropped_line(self, count: int) -> bytes:
        record = logging.LogRecord("root", WARNING, "", 0, "log lines dropped", (), None)
        record.fields = {"count": count, "reason": "the log was not read"}
        return self._line(record)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
        if self._owns_fd and self.writer.flush():
            self._owns_fd = False
            os.close(self._fd)
        super().close()


class LineFormatter(logging.Formatter):
    """The base of both formats."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        fields = {camel_case(name): value for name, value in getattr(record, "fields", {}).items()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
            fields["traceback"] = self.formatException(record.exc_info)
        return fields

    def place(self, record: logging.LogRecord) -> str:
        return self.program if record.name == "root" else record.name.removeprefix(_OURS)


class TextFormatter(LineFormatter):
    """`TIME LEVEL place: message key=value key="quoted value"`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {_quoted(key)}={_quoted(value)}" for key, value in self.fields(record).items())
        message = _one_line(record.getMessage())
        return f"{_timestamp(record)} {record.levelname} {_one_line(self.place(record))}: {message}{fields}"


class JsonFormatter(LineFormatter):
    """One JSON object; a field named as one of ours gets an underscore."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "program": self.program,
            "logger": self.place(record),
            "message": record.getMessage(),
        }
        for key, value in self.fields(record).items():
            line[f"{key}_" if key in line else key] = _json_value(value)
        return json.dumps(line)


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _json_value(value: object) -> object:
    # JSON has no infinity, no NaN and no custom types.
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value - value == 0:
        return value
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return str(value)


def _quoted(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1]
