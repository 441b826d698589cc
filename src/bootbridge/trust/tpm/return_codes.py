"""TPM_RC return codes as text, with advice."""

from __future__ import annotations

from bootbridge.errors import BootbridgeError

SUCCESS = 0
HANDLE = 0x08B
OBJECT_MEMORY, SESSION_MEMORY, SESSION_HANDLES, OBJECT_HANDLES = 0x902, 0x903, 0x905, 0x906
NV_UNINITIALISED = 0x14A
YIELDED, TESTING, RETRY = 0x908, 0x90A, 0x922
# Transient: the same command succeeds later.
TRANSIENT = frozenset({YIELDED, TESTING, RETRY})
# No room: another program left objects or sessions loaded.
OUT_OF_MEMORY = frozenset({OBJECT_MEMORY, SESSION_MEMORY, SESSION_HANDLES, OBJECT_HANDLES})

_AUTHORISATION = "clear the endorsement hierarchy's authorisation value: bootbridge needs it empty"
_LEFT_BEHIND = "another program has objects loaded: use /dev/tpmrm0, or restart that program"
_FIRMWARE = "not supported by this TPM or emulator: check its version, or use another kind of evidence"

# Format one: the code contains the number of the handle, parameter or session.
_FORMAT_ONE = {
    0x01: "asymmetric algorithm not supported",
    0x02: "inconsistent attributes",
    0x03: "hash algorithm not supported",
    0x04: "value out of range or not allowed in this context",
    0x05: "hierarchy not enabled",
    0x07: "key size not supported",
    0x0A: "wrong type",
    0x0B: "no such handle",
    0x0E: "authorisation failed",
    0x12: "scheme not supported",
    0x15: "wrong size",
    0x16: "symmetric algorithm not supported",
    0x1A: "structure truncated",
    0x1D: "policy check failed",
    0x1F: "integrity check failed",
    0x22: "authorisation failed",
    0x26: "curve not supported",
    0x27: "point not on the curve",
}
# Format zero: without such a number.
_FORMAT_ZERO = {
    0x100: "not initialised by TPM2_Startup",
    0x101: "in failure mode",
    0x120: "command disabled",
    0x125: "authorisation missing",
    0x128: "PCRs changed",
    0x130: "reboot required",
    0x142: "wrong command size",
    0x143: "unknown command",
    0x146: "NV range exceeded",
    0x148: "NV index locked",
    0x149: "NV index not authorised",
    0x14A: "NV index never written",
    0x902: "out of object memory",
    0x903: "out of session memory",
    0x904: "out of memory",
    0x905: "out of session handles",
    0x906: "out of object handles",
    0x907: "not allowed at this locality",
    0x908: "yielded",
    0x909: "cancelled",
    0x90A: "self-test in progress",
    0x920: "NV write rate limited",
    0x921: "dictionary attack lockout",
    0x922: "busy",
    0x923: "NV unavailable",
}
_ADVICE = {
    0x05: "enable the endorsement hierarchy in the firmware's TPM settings",
    0x0E: _AUTHORISATION,
    0x22: _AUTHORISATION,
    0x03: _FIRMWARE,
    0x12: _FIRMWARE,
    0x26: _FIRMWARE,
    0x100: "the platform firmware must start it; start swtpm with --flags startup-clear",
    0x101: "power-cycle the machine; if it persists, replace the TPM",
    0x120: "enable it in the firmware's TPM settings",
    0x130: "reboot the machine",
    0x143: _FIRMWARE,
    0x902: _LEFT_BEHIND,
    0x903: _LEFT_BEHIND,
    0x905: _LEFT_BEHIND,
    0x906: _LEFT_BEHIND,
    0x907: "this locality may not extend the PCR; use PCR 15",
    0x921: "wait until the lockout ends, or reset it with the lockout authorisation",
}


class TpmError(BootbridgeError):
    """The TPM responded with an error code."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"TPM command {command} failed: {describe(code)}")
        self.code = base_code(code)


def base_code(code: int) -> int:
    """Removes the number of the handle, parameter or session, and the reporting layer."""
    return code & 0xBF if code & 0x80 else code & 0xFFF


def describe(code: int) -> str:
    error = base_code(code)
    key = error & 0x3F if code & 0x80 else error
    text = (_FORMAT_ONE if code & 0x80 else _FORMAT_ZERO).get(key, "vendor-specific or unknown error")
    advice = _ADVICE.get(key, "")
    return f"{text}, code {code:#05x}" + (f" ({advice})" if advice else "")
