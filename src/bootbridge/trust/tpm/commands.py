"""Encodes TPM 2.0 commands and parses their responses; does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from bootbridge.trust.tpm.codec import Reader, sized, u8, u16, u32
from bootbridge.trust.tpm.return_codes import SUCCESS, TpmError
from bootbridge.trust.tpm.structures import ALG_NULL, ALG_SHA256, PublicArea, write_selection

# TPM_ST: whether an authorisation area lies between handles and parameters.
ST_NO_SESSIONS, ST_SESSIONS = 0x8001, 0x8002
HEADER_BYTES = 10
MESSAGE_BYTES_MAX = 4096

RH_NULL, RS_PW, RH_ENDORSEMENT = 0x40000007, 0x40000009, 0x4000000B
TRANSIENT_FIRST, LOADED_SESSION_FIRST = 0x80000000, 0x02000000

_POLICY_SESSION = 0x01
_CONTINUE_SESSION = 0x01
_CAP_HANDLES, _CAP_PCRS, _CAP_PROPERTIES = 1, 5, 6
_HANDLES_MAX = 254
_DIGESTS_MAX = 8
_DIGEST_BYTES_MAX = 64


class CommandCode(IntEnum):
    """TPM_CC of the commands in use."""

    CREATE_PRIMARY = 0x131
    PCR_EVENT = 0x13C
    ACTIVATE_CREDENTIAL = 0x147
    NV_READ = 0x14E
    POLICY_SECRET = 0x151
    QUOTE = 0x158
    CONTEXT_LOAD = 0x161
    CONTEXT_SAVE = 0x162
    FLUSH_CONTEXT = 0x165
    NV_READ_PUBLIC = 0x169
    READ_PUBLIC = 0x173
    START_AUTH_SESSION = 0x176
    GET_CAPABILITY = 0x17A
    PCR_READ = 0x17E

    def __str__(self) -> str:
        return "TPM2_" + "".join(
            word if word in ("PCR", "NV") else word.capitalize() for word in self.name.split("_")
        )


# Commands whose response starts with a handle.
_RETURN_HANDLE = frozenset(
    {CommandCode.CREATE_PRIMARY, CommandCode.START_AUTH_SESSION, CommandCode.CONTEXT_LOAD}
)


@dataclass(frozen=True)
class TpmCommand:
    """`sessions` authorise the first handles; RS_PW is the empty password."""

    code: CommandCode
    handles: Sequence[int] = ()
    sessions: Sequence[int] = ()
    parameters: bytes = b""

    def encode(self) -> bytes:
        body = b"".join(u32(handle) for handle in self.handles)
        if self.sessions:
            area = b"".join(_authorisation(session) for session in self.sessions)
            body += u32(len(area)) + area
        body += self.parameters
        tag = ST_SESSIONS if self.sessions else ST_NO_SESSIONS
        return u16(tag) + u32(HEADER_BYTES + len(body)) + u32(self.code) + body


def _authorisation(session: int) -> bytes:
    # Without continueSession a policy session ends with its command; a password session ignores the flag.
    return u32(session) + sized(b"") + u8(_CONTINUE_SESSION if session == RS_PW else 0) + sized(b"")


@dataclass(frozen=True)
class TpmResponse:
    """The response to a successful command; `handle` is 0 if it returns none."""

    handle: int
    parameters: Reader


def parse_response(command: TpmCommand, response: bytes) -> TpmResponse:
    """Raises TpmError for an error code."""
    reader = Reader(response, f"response to {command.code}")
    tag, size, code = reader.u16(), reader.u32(), reader.u32()
    if size != len(response):
        raise reader.malformed(f"size field {size}, but {len(response)} bytes received")
    if code != SUCCESS:
        raise TpmError(str(command.code), code)
    handle = reader.u32() if command.code in _RETURN_HANDLE else 0
    parameters = reader.take(reader.u32()) if tag == ST_SESSIONS else reader.rest()
    return TpmResponse(handle, Reader(parameters, f"response to {command.code}"))


def create_primary(hierarchy: int, template: PublicArea) -> TpmCommand:
    empty_sensitive = sized(sized(b"") + sized(b""))
    no_creation_pcrs = u32(0)
    parameters = empty_sensitive + sized(template.encode()) + sized(b"") + no_creation_pcrs
    return TpmCommand(CommandCode.CREATE_PRIMARY, (hierarchy,), (RS_PW,), parameters)


def read_public(handle: int) -> TpmCommand:
    return TpmCommand(CommandCode.READ_PUBLIC, (handle,))


def parse_public(response: TpmResponse) -> PublicArea:
    """Parses the public area in the response to CreatePrimary or ReadPublic."""
    return PublicArea.parse(response.parameters.sized())


def context_save(handle: int) -> TpmCommand:
    """The whole response is the context."""
    return TpmCommand(CommandCode.CONTEXT_SAVE, (handle,))


def context_load(context: bytes) -> TpmCommand:
    return TpmCommand(CommandCode.CONTEXT_LOAD, parameters=context)


def quote(key: int, data: bytes, indices: Sequence[int]) -> TpmCommand:
    parameters = sized(data) + u16(ALG_NULL) + write_selection(ALG_SHA256, indices)
    return TpmCommand(CommandCode.QUOTE, (key,), (RS_PW,), parameters)


def parse_quote_response(response: TpmResponse) -> tuple[bytes, bytes]:
    """Returns (TPMS_ATTEST, TPMT_SIGNATURE), both encoded."""
    return response.parameters.sized(), response.parameters.rest()


def pcr_read(algorithm: int, indices: Sequence[int]) -> TpmCommand:
    return TpmCommand(CommandCode.PCR_READ, parameters=write_selection(algorithm, indices))


def read_digests(reader: Reader) -> list[bytes]:
    count = reader.u32()
    if count > _DIGESTS_MAX:
        raise reader.malformed(f"{count} digests (at most {_DIGESTS_MAX})")
    return [reader.sized(_DIGEST_BYTES_MAX) for _ in range(count)]


def pcr_event(index: int, data: bytes) -> TpmCommand:
    return TpmCommand(CommandCode.PCR_EVENT, (index,), (RS_PW,), sized(data))


def nv_read_public(index: int) -> TpmCommand:
    return TpmCommand(CommandCode.NV_READ_PUBLIC, (index,))


def parse_nv_size(response: TpmResponse) -> int:
    """Returns the index's data size in bytes."""
    public = Reader(response.parameters.sized(), "NV public area")
    public.u32(), public.u16(), public.u32(), public.sized(_DIGEST_BYTES_MAX)
    size = public.u16()
    public.end()
    return size


def nv_read(index: int, size: int, offset: int) -> TpmCommand:
    return TpmCommand(CommandCode.NV_READ, (index, index), (RS_PW,), u16(size) + u16(offset))


def start_policy_session(nonce: bytes) -> TpmCommand:
    parameters = sized(nonce) + sized(b"") + u8(_POLICY_SESSION) + u16(ALG_NULL) + u16(ALG_SHA256)
    return TpmCommand(CommandCode.START_AUTH_SESSION, (RH_NULL, RH_NULL), parameters=parameters)


def policy_secret(hierarchy: int, session: int) -> TpmCommand:
    parameters = sized(b"") + sized(b"") + sized(b"") + u32(0)
    return TpmCommand(CommandCode.POLICY_SECRET, (hierarchy, session), (RS_PW,), parameters)


def activate_credential(
    key: int, endorsement_key: int, session: int, blob: bytes, secret: bytes
) -> TpmCommand:
    sessions = (RS_PW, session)
    return TpmCommand(
        CommandCode.ACTIVATE_CREDENTIAL, (key, endorsement_key), sessions, sized(blob) + sized(secret)
    )


def flush(handle: int) -> TpmCommand:
    # By the specification, flushHandle is a parameter.
    return TpmCommand(CommandCode.FLUSH_CONTEXT, parameters=u32(handle))


def get_handles(first: int) -> TpmCommand:
    return TpmCommand(
        CommandCode.GET_CAPABILITY, parameters=u32(_CAP_HANDLES) + u32(first) + u32(_HANDLES_MAX)
    )


def parse_handles(response: TpmResponse) -> list[int]:
    reader = response.parameters
    reader.u8(), reader.u32()
    count = reader.u32()
    if count > _HANDLES_MAX:
        raise reader.malformed(f"{count} handles (at most {_HANDLES_MAX})")
    return [reader.u32() for _ in range(count)]


def get_properties(first: int, count: int) -> TpmCommand:
    return TpmCommand(CommandCode.GET_CAPABILITY, parameters=u32(_CAP_PROPERTIES) + u32(first) + u32(count))


def parse_properties(response: TpmResponse) -> dict[int, int]:
    reader = response.parameters
    reader.u8(), reader.u32()
    count = reader.u32()
    if count > _HANDLES_MAX:
        raise reader.malformed(f"{count} properties (at most {_HANDLES_MAX})")
    return {reader.u32(): reader.u32() for _ in range(count)}


def get_pcr_banks() -> TpmCommand:
    return TpmCommand(CommandCode.GET_CAPABILITY, parameters=u32(_CAP_PCRS) + u32(0) + u32(1))
