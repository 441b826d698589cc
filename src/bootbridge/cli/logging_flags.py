"""The flags about logs, the same for both programs: ours, and all of klog's."""

from __future__ import annotations

from bootbridge.cli import values
from bootbridge.cli.pflags import Flag, FlagType

_BOOL = FlagType("", values.parse_klog_bool, values.show_bool, bare="true", fix="write =true or =false")
_LEVEL = FlagType("level", values.parse_decimal, fix="write a whole number")
_SEVERITY = FlagType("severity", values.parse_severity, fix="write INFO, WARNING, ERROR, FATAL or 0 to 3")
_SIZE = FlagType("uint", values.parse_size, fix="write a number of megabytes")
_TAKEN = "Taken for compatibility, without effect."

LOGGING = (
    Flag("log-format", "How a log line is written: 'text' for people, 'json' for collectors."),
    Flag("v", "Verbosity. Higher numbers say more.", _LEVEL, shorthand="v"),
    Flag("logtostderr", "Log to standard error instead of to a file.", _BOOL),
    Flag("log-file", "Log to this file. Only with --logtostderr=false."),
    Flag("log-dir", f"Folder for log files. {_TAKEN}"),
    Flag("log-file-max-size", f"Megabytes after which a log file starts anew. {_TAKEN}", _SIZE),
    Flag("alsologtostderr", f"Log to standard error beside a file. {_TAKEN}", _BOOL),
    Flag("stderrthreshold", f"Least severity for standard error. {_TAKEN}", _SEVERITY),
    Flag("alsologtostderrthreshold", f"The same with --alsologtostderr. {_TAKEN}", _SEVERITY),
    Flag("vmodule", f"Verbosity by source file. {_TAKEN}"),
    Flag("add-dir-header", f"Name the source folder in each line. {_TAKEN}", _BOOL),
    Flag("skip-headers", f"Leave out the prefix of each line. {_TAKEN}", _BOOL),
    Flag("skip-log-headers", f"Leave out the heading of log files. {_TAKEN}", _BOOL),
    Flag("one-output", f"Write each line to one severity's file only. {_TAKEN}", _BOOL),
    Flag("log-backtrace-at", f"Print a stack trace at file:line. {_TAKEN}"),
    Flag("legacy-stderr-threshold-behavior", f"How --stderrthreshold is read. {_TAKEN}", _BOOL),
)
