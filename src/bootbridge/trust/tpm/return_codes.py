"""What a TPM's return codes mean, and what to do about them."""

from __future__ import annotations

from bootbridge.errors import BootbridgeError

SUCCESS = 0
HANDLE = 0x08B
OBJECT_MEMORY, SESSION_MEMORY, SESSION_HANDLES, OBJECT_HANDLES = 0x902, 0x903, 0x905, 0x906
NV_UNINITIALISED = 0x14A
YIELDED, TESTING, RETRY = 0x908, 0x90A, 0x922
# The chip is busy with itself; the same command will do in a moment.
TRY_AGAIN = frozenset({YIELDED, TESTING, RETRY})
# Somebody who went away left objects or sessions behind.
FULL = frozenset({OBJECT_MEMORY, SESSION_MEMORY, SESSION_HANDLES, OBJECT_HANDLES})

_AUTHORISATION = "the endorsement hierarchy of this TPM has a password; bootbridge needs it without one"
_LEFT_BEHIND = "another program keeps objects in the TPM: use /dev/tpmrm0, or restart that program"
_FIRMWARE = "the TPM or its emulator lacks what is needed: see its version, or take another kind of evidence"

# Format one: about a handle, a parameter or a session, whose number is in the code.
_ABOUT_PART = {
    0x01: "asymmetric algorithm not supported",
    0x02: "inconsistent attributes",
    0x03: "hash algorithm not supported",
    0x04: "value out of range or wrong in this place",
    0x05: "hierarchy not enabled",
    0x07: "key size not supported",
    0x0A: "wrong type",
    0x0B: "no such handle",
    0x0E: "authorisation failed",
    0x12: "scheme not supported",
    0x15: "wrong size",
    0x16: "symmetric algorithm not supported",
    0x1A: "structure ends too early",
    0x1D: "policy not fulfilled",
    0x1F: "integrity check failed",
    0x22: "authorisation failed",
    0x26: "curve not supported",
    0x27: "point not on the curve",
}
# Format zero: about the TPM as a whole.
_WHOLE = {
    0x100: "not started up",
    0x101: "in failure mode",
    0x120: "command disabled",
    0x125: "authorisation missing",
    0x128: "PCRs changed meanwhile",
    0x130: "needs a reboot",
    0x142: "wrong command size",
    0x143: "unknown command",
    0x146: "outside the NV index",
    0x148: "NV index locked",
    0x149: "NV index not authorised",
    0x14A: "NV index never written",
    0x902: "out of memory for objects",
    0x903: "out of memory for sessions",
    0x904: "out of memory",
    0x905: "out of handles for sessions",
    0x906: "out of handles for objects",
    0x907: "not allowed at this locality",
    0x908: "yielded",
    0x909: "cancelled",
    0x90A: "still testing itself",
    0x920: "NV is written too often",
    0x921: "locked out after wrong authorisations",
    0x922: "busy",
    0x923: "NV not accessible now",
}
_ADVICE = {
    0x05: "enable the endorsement hierarchy in the firmware's TPM settings",
    0x0E: _AUTHORISATION,
    0x22: _AUTHORISATION,
    0x03: _FIRMWARE,
    0x12: _FIRMWARE,
    0x26: _FIRMWARE,
    0x100: "the platform has not started it; an emulator needs --flags startup-clear",
    0x101: "power-cycle the machine; if it stays so, the chip is broken",
    0x120: "enable it in the firmware's TPM settings",
    0x130: "reboot the machine",
    0x143: _FIRMWARE,
    0x902: _LEFT_BEHIND,
    0x903: _LEFT_BEHIND,
    0x905: _LEFT_BEHIND,
    0x906: _LEFT_BEHIND,
    0x907: "another owner of this PCR must extend it; take PCR 15",
    0x921: "wait until the lockout has passed, or reset it with the lockout password",
}


class TpmError(BootbridgeError):
    """The TPM answered with an error."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"the TPM refused {command}: {described(code)}")
        self.code = plain(code)


def plain(code: int) -> int:
    """The error alone, without which handle, parameter or session it is about, and which layer reports it."""
    return code & 0xBF if code & 0x80 else code & 0xFFF


def described(code: int) -> str:
    error = plain(code)
    key = error & 0x3F if code & 0x80 else error
    text = (_ABOUT_PART if code & 0x80 else _WHOLE).get(key, "an error of its own")
    advice = _ADVICE.get(key, "")
    return f"{text}, code {code:#05x}" + (f" ({advice})" if advice else "")
