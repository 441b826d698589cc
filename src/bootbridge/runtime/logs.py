"""Logging: one line per event, as `text` or `json`.

    2026-11-16T00:00:00.000Z INFO server: agent connected agent=node-7 agents=2

Peers choose many of the logged values, so characters that could break a line, forge a field or
control a terminal are escaped.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time

from bootbridge.errors import OperatorError

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

# klog levels of 5 and above are upstream's debug messages.
DEBUG_VERBOSITY = 5

_PLAIN = re.compile(r"[^\s\"'=\\]+")


def event(logger_name: str, level: int, message: str, /, **fields: object) -> None:
    """Logs an event: a constant message, and everything variable in `fields`."""
    logger = logging.getLogger(logger_name)
    if logger.isEnabledFor(level):
        logger.log(level, "%s", message, extra={"fields": fields})


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
    handler = _handler(log_file if not logtostderr else "")
    handler.setFormatter(formatters[log_format](program))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, LineFormatter)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(DEBUG if verbosity >= DEBUG_VERBOSITY else INFO)
    logging.getLogger("asyncio").setLevel(WARNING)
    # A closed stderr must not cause tracebacks.
    logging.raiseExceptions = False


def _handler(log_file: str) -> logging.Handler:
    if not log_file:
        return logging.StreamHandler(sys.stderr)
    try:
        return logging.FileHandler(log_file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OperatorError(
            f"cannot write {log_file}: {error.strerror}",
            subject="--log-file",
            hint="use a file in a writable directory",
        ) from error


class LineFormatter(logging.Formatter):
    """The base of both formats."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = repr(record.exc_info[1])
            fields["traceback"] = self.formatException(record.exc_info)
        return fields

    def place(self, record: logging.LogRecord) -> str:
        return self.program if record.name == "root" else record.name


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
