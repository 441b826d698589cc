"""What the options of both programs share: values as Go prints them, and checks with the fix in hand."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bootbridge.errors import OperatorError

LOG_FORMATS = ("text", "json")


def format_duration(seconds: float) -> str:
    """Seconds as Go prints a duration: ``1h0m0s``, ``1.5s``, ``500ms``, ``-1s``, ``0s``."""
    return format_nanoseconds(round(seconds * 1_000_000_000))


def format_nanoseconds(nanoseconds: int) -> str:
    """Nanoseconds as Go prints a duration, exact to the last one."""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000)):
        if rest < size * 1_000:
            return f"{sign}{_decimal(rest, size)}{unit}"
    minutes, rest = divmod(rest, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_decimal(rest, 1_000_000_000)}s"


def _decimal(value: int, unit: int) -> str:
    whole, part = divmod(value, unit)
    digits = str(unit + part)[1:].rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def quote(text: str) -> str:
    """Text as it stands quoted in a message, always on one line."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain) + '"'


def identity(variable: str) -> str:
    """The identity given by the environment, or a fresh random (version 4) UUID."""
    given = os.environ.get(variable)
    if given:
        return given
    # The uuid module costs more to import than these lines.
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def require_file(path: str, purpose: str, flag: str) -> None:
    """Refuse a path that names nothing; ``purpose`` opens the message."""
    try:
        os.stat(path)
    except FileNotFoundError:
        text = f"{purpose}, got stat {path}: no such file or directory"
        raise OperatorError(text, subject=flag, hint="create the file or correct the path") from None
    except OSError:
        pass  # It is there in some way; require_readable says what is wrong with it.


def require_readable(path: str, flag: str) -> None:
    """Refuse a file that we would fail to read later, when nobody looks at the terminal."""
    if not path:
        return
    if os.path.isdir(path):
        raise OperatorError(f"{path} is a directory", subject=flag, hint="name the file in it")
    if not os.access(path, os.R_OK):
        hint = "check its owner and mode, and those of its folders"
        raise OperatorError(f"{path} can not be read by this user", subject=flag, hint=hint)


def require_key_pair(side: str, key: str, cert: str) -> None:
    """A key and its certificate: both there, or neither given."""
    if key:
        require_file(key, f"error checking {side} key {key}", f"--{side}-key")
        if not cert:
            text = f"cannot have {side} cert empty when {side} key is set to {quote(key)}"
            raise OperatorError(text, subject=f"--{side}-cert", hint="give the certificate of that key")
    if cert:
        require_file(cert, f"error checking {side} cert {cert}", f"--{side}-cert")
        if not key:
            text = f"cannot have {side} key empty when {side} cert is set to {quote(cert)}"
            raise OperatorError(text, subject=f"--{side}-key", hint="give the key of that certificate")


def require_positive_duration(seconds: float, name: str) -> None:
    if not seconds > 0:
        text = f"{name} must be > 0, got {format_duration(seconds)}"
        raise OperatorError(text, subject=f"--{name}", hint="for example 10s")


def require_duration(seconds: float, name: str) -> None:
    if seconds < 0:
        text = f"{name} must be >= 0, got {format_duration(seconds)}"
        raise OperatorError(text, subject=f"--{name}", hint="for example 30s")


def require_channel_size(size: int) -> None:
    if size <= 0:
        text = f"channel size {size} must be greater than 0"
        raise OperatorError(text, subject="--xfr-channel-size", hint="leave it out for the default")


def require_profiling(contention: bool, profiling: bool) -> None:
    if contention and not profiling:
        text = "if --enable-contention-profiling is set, --enable-profiling must also be set"
        raise OperatorError(text, hint="add --enable-profiling")


def require_log_format(log_format: str) -> None:
    if log_format not in LOG_FORMATS:
        text = f"log format must be 'text' or 'json' not {quote(log_format)}"
        raise OperatorError(text, subject="--log-format", hint="--log-format=text or --log-format=json")


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """How to log. klog's flags are all taken, since manifests pass them; see the help for which act."""

    v: int = 4
    vmodule: str = ""
    logtostderr: bool = True
    alsologtostderr: bool = False
    stderrthreshold: int = 2
    alsologtostderrthreshold: int = 0
    legacy_stderr_threshold_behavior: bool = True
    log_dir: str = ""
    log_file: str = ""
    log_file_max_size: int = 1800
    add_dir_header: bool = False
    skip_headers: bool = False
    skip_log_headers: bool = False
    one_output: bool = False
    log_backtrace_at: str = ""
    log_format: str = "text"
