"""The logging flags of both proxies: ours, and all of klog's."""

from __future__ import annotations

from bootbridge.cli import values
from bootbridge.cli.pflags import Flag, FlagType

_BOOL = FlagType("", values.parse_klog_bool, values.show_bool, bare="true", fix="write =true or =false")
_LEVEL = FlagType("level", values.parse_decimal, fix="write a whole number")
_SEVERITY = FlagType("severity", values.parse_severity, fix="write INFO, WARNING, ERROR, FATAL or 0 to 3")
_SIZE = FlagType("uint", values.parse_size, fix="write a number of megabytes")
_NO_EFFECT = "Accepted for compatibility, without effect."

LOGGING = (
    Flag("log-format", "Log format: 'text' or 'json'.", choices=("text", "json")),
    Flag("v", "Log verbosity; 5 and above includes debug messages.", _LEVEL, shorthand="v"),
    Flag("logtostderr", "Log to standard error instead of to a file.", _BOOL),
    Flag("log-file", "Log to this file. Only with --logtostderr=false."),
    Flag("log-dir", f"Directory of log files. {_NO_EFFECT}"),
    Flag("log-file-max-size", f"Maximum size of a log file in megabytes. {_NO_EFFECT}", _SIZE),
    Flag("alsologtostderr", f"Log to standard error and to a file. {_NO_EFFECT}", _BOOL),
    Flag("stderrthreshold", f"Minimum severity for standard error. {_NO_EFFECT}", _SEVERITY),
    Flag("alsologtostderrthreshold", f"The same with --alsologtostderr. {_NO_EFFECT}", _SEVERITY),
    Flag("vmodule", f"Verbosity by source file. {_NO_EFFECT}"),
    Flag("add-dir-header", f"Add the source directory to each line. {_NO_EFFECT}", _BOOL),
    Flag("skip-headers", f"Omit the prefix of each line. {_NO_EFFECT}", _BOOL),
    Flag("skip-log-headers", f"Omit the header of log files. {_NO_EFFECT}", _BOOL),
    Flag("one-output", f"Write each line to one severity's file only. {_NO_EFFECT}", _BOOL),
    Flag("log-backtrace-at", f"Print a stack trace at file:line. {_NO_EFFECT}"),
    Flag("legacy-stderr-threshold-behavior", f"Old interpretation of --stderrthreshold. {_NO_EFFECT}", _BOOL),
)
