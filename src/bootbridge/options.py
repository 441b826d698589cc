"""Options and checks that both proxies share, and values in Go's notation."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bootbridge.errors import OperatorError

LOG_FORMATS = ("text", "json")


def format_duration(seconds: float) -> str:
    """Formats seconds as a Go duration: ``1h0m0s``, ``1.5s``, ``500ms``, ``-1s``, ``0s``."""
    return format_nanoseconds(round(seconds * 1_000_000_000))


def format_nanoseconds(nanoseconds: int) -> str:
    """Formats nanoseconds as a Go duration, exactly."""
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
    """Quotes text for a message, always on one line."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain) + '"'


def identity(variable: str) -> str:
    """Returns the value of the environment variable, or a random (version 4) UUID."""
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
    """Raises if the file does not exist; the message starts with ``purpose``."""
    try:
        os.stat(path)
    except FileNotFoundError:
        text = f"{purpose}, got stat {path}: no such file or directory"
        raise OperatorError(text, subject=flag, hint="create the file or correct the path") from None
    except OSError:
        pass  # require_readable reports other problems


def require_readable(path: str, flag: str) -> None:
    """Raises if the file cannot be read, so that the error appears at start."""
    if not path:
        return
    if os.path.isdir(path):
        raise OperatorError(f"{path} is a directory", subject=flag, hint="use a file in it")
    if os.access(path, os.R_OK):
        return
    try:
        os.stat(path)
        problem = "permission denied"
    except OSError as error:
        problem = os.strerror(error.errno or 0).lower()
    hint = "check the path, and owner and mode of the file and its directories"
    raise OperatorError(f"{path}: {problem}", subject=flag, hint=hint)


def require_key_pair(side: str, key: str, cert: str) -> None:
    """Raises unless both key and certificate exist, or neither is set."""
    if key:
        require_file(key, f"error checking {side} key {key}", f"--{side}-key")
        if not cert:
            text = f"cannot have {side} cert empty when {side} key is set to {quote(key)}"
            raise OperatorError(text, subject=f"--{side}-cert", hint="set the certificate of that key")
    if cert:
        require_file(cert, f"error checking {side} cert {cert}", f"--{side}-cert")
        if not key:
            text = f"cannot have {side} key empty when {side} cert is set to {quote(cert)}"
            raise OperatorError(text, subject=f"--{side}-key", hint="set the key of that certificate")


def require_positive_duration(seconds: float, name: str) -> None:
    if not seconds > 0:
        text = f"{name} must be > 0, got {format_duration(seconds)}"
        raise OperatorError(text, subject=f"--{name}", hint="for example 10s")


def require_duration(seconds: float, name: str) -> None:
    if seconds < 0:
        text = f"{name} must be >= 0, got {format_duration(seconds)}"
        raise OperatorError(text, subject=f"--{name}", hint="for example 30s")


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """Logging flags. All of klog's are accepted, because manifests set them; most have no effect."""

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


@dataclass(frozen=True, kw_only=True)
class ProxyOptions(LoggingOptions):
    """The flags that both proxies have."""

    admin_bind_address: str = "127.0.0.1"
    enable_profiling: bool = False
    enable_contention_profiling: bool = False
    keepalive_time: float = 3600.0
    kubeconfig: str = ""
    kube_api_content_type: str = "application/vnd.kubernetes.protobuf"
    lease_namespace: str = "kube-system"
    stall_timeout: float = 10.0
    allow_destinations: tuple[str, ...] = ()
    deny_destinations: tuple[str, ...] = ()
    xfr_channel_size: int = 0
    warn_on_channel_limit: bool = False


def check_channel_size(options: ProxyOptions) -> None:
    if options.xfr_channel_size <= 0:
        text = f"channel size {options.xfr_channel_size} must be greater than 0"
        raise OperatorError(text, subject="--xfr-channel-size", hint="omit it for the default")


def check_profiling(options: ProxyOptions) -> None:
    if options.enable_contention_profiling and not options.enable_profiling:
        text = "if --enable-contention-profiling is set, --enable-profiling must also be set"
        raise OperatorError(text, hint="add --enable-profiling")


def check_log_format(options: ProxyOptions) -> None:
    if options.log_format not in LOG_FORMATS:
        text = f"log format must be 'text' or 'json' not {quote(options.log_format)}"
        raise OperatorError(text, subject="--log-format", hint="--log-format=text or --log-format=json")


def check_stall_timeout(options: ProxyOptions) -> None:
    require_positive_duration(options.stall_timeout, "stall-timeout")
