"""TPM 2.0 commands as bytes, and their answers taken apart. The caller moves the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from bootbridge.trust.tpm.codec import Reader, sized, u8, u16, u32
from bootbridge.trust.tpm.return_codes import SUCCESS, TpmError
from bootbridge.trust.tpm.structures import ALG_NULL, ALG_SHA256, Public, write_selection

# TPM_ST: whether authorisations stand between handles and parameters.
PLAIN, AUTHORISED = 0x8001, 0x8002
HEADER_BYTES = 10
MESSAGE_BYTES_MAX = 4096

NULL_HANDLE, PASSWORD, ENDORSEMENT = 0x40000007, 0x40000009, 0x4000000B
TRANSIENT_FIRST, LOADED_SESSION_FIRST = 0x80000000, 0x02000000

_POLICY_SESSION = 0x01
_CONTINUE_SESSION = 0x01
_CAP_HANDLES, _CAP_PCRS, _CAP_PROPERTIES = 1, 5, 6
_HANDLES_MAX = 254
_DIGESTS_MAX = 8
_DIGEST_BYTES_MAX = 64


class Code(IntEnum):
    """TPM_CC of the commands that are used here."""

    CREATE_PRIMARY = 0x131
    PCR_EVENT = 0x13C
    ACTIVATE_CREDENTIAL = 0x147
    NV_READ = 0x14E
    POLICY_SECRET = 0x151
    QUOTE = 0x158
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


# Commands that answer with a handle before everything else.
_GIVE_HANDLE = frozenset({Code.CREATE_PRIMARY, Code.START_AUTH_SESSION})


@dataclass(frozen=True)
class Command:
    """One command. `sessions` authorise the first handles: PASSWORD is the empty password."""

    code: Code
    handles: Sequence[int] = ()
    sessions: Sequence[int] = ()
    parameters: bytes = b""

    def encode(self) -> bytes:
        body = b"".join(u32(handle) for handle in self.handles)
        if self.sessions:
            area = b"".join(_authorisation(session) for session in self.sessions)
            body += u32(len(area)) + area
        body += self.parameters
        tag = AUTHORISED if self.sessions else PLAIN
        return u16(tag) + u32(HEADER_BYTES + len(body)) + u32(self.code) + body


def _authorisation(session: int) -> bytes:
    # Policy sessions end with the command that uses them; the flag means nothing to a password.
    return u32(session) + sized(b"") + u8(_CONTINUE_SESSION if session == PASSWORD else 0) + sized(b"")


@dataclass(frozen=True)
class Response:
    """What a successful command gave; `handle` is 0 where none is given."""

    handle: int
    parameters: Reader


def parse_response(command: Command, answer: bytes) -> Response:
    """The answer to this command; an error code of the TPM becomes TpmError."""
    reader = Reader(answer, f"TPM's answer to {command.code}")
    tag, size, code = reader.u16(), reader.u32(), reader.u32()
    if size != len(answer):
        raise reader.wrong(f"says it has {size} bytes and has {len(answer)}")
    if code != SUCCESS:
        raise TpmError(str(command.code), code)
    handle = reader.u32() if command.code in _GIVE_HANDLE else 0
    parameters = reader.take(reader.u32()) if tag == AUTHORISED else reader.rest()
    return Response(handle, Reader(parameters, f"TPM's answer to {command.code}"))


def create_primary(hierarchy: int, template: Public) -> Command:
    nothing_secret = sized(sized(b"") + sized(b""))
    no_creation_pcrs = u32(0)
    parameters = nothing_secret + sized(template.encode()) + sized(b"") + no_creation_pcrs
    return Command(Code.CREATE_PRIMARY, (hierarchy,), (PASSWORD,), parameters)


def read_public(handle: int) -> Command:
    return Command(Code.READ_PUBLIC, (handle,))


def public_of(response: Response) -> Public:
    """The public area that both CreatePrimary and ReadPublic begin with."""
    return Public.parse(response.parameters.sized())


def quote(key: int, data: bytes, indices: Sequence[int]) -> Command:
    parameters = sized(data) + u16(ALG_NULL) + write_selection(ALG_SHA256, indices)
    return Command(Code.QUOTE, (key,), (PASSWORD,), parameters)


def quoted_of(response: Response) -> tuple[bytes, bytes]:
    """(what was attested, signature)."""
    return response.parameters.sized(), response.parameters.rest()


def pcr_read(algorithm: int, indices: Sequence[int]) -> Command:
    return Command(Code.PCR_READ, parameters=write_selection(algorithm, indices))


def read_digests(reader: Reader) -> list[bytes]:
    count = reader.u32()
    if count > _DIGESTS_MAX:
        raise reader.wrong(f"holds {count} digests")
    return [reader.sized(_DIGEST_BYTES_MAX) for _ in range(count)]


def pcr_event(index: int, data: bytes) -> Command:
    return Command(Code.PCR_EVENT, (index,), (PASSWORD,), sized(data))


def nv_read_public(index: int) -> Command:
    return Command(Code.NV_READ_PUBLIC, (index,))


def nv_size_of(response: Response) -> int:
    """How many bytes the index holds."""
    public = Reader(response.parameters.sized(), "NV index's public area")
    public.u32(), public.u16(), public.u32(), public.sized(_DIGEST_BYTES_MAX)
    size = public.u16()
    public.end()
    return size


def nv_read(index: int, size: int, offset: int) -> Command:
    return Command(Code.NV_READ, (index, index), (PASSWORD,), u16(size) + u16(offset))


def start_policy_session(nonce: bytes) -> Command:
    parameters = sized(nonce) + sized(b"") + u8(_POLICY_SESSION) + u16(ALG_NULL) + u16(ALG_SHA256)
    return Command(Code.START_AUTH_SESSION, (NULL_HANDLE, NULL_HANDLE), parameters=parameters)


def policy_secret(hierarchy: int, session: int) -> Command:
    parameters = sized(b"") + sized(b"") + sized(b"") + u32(0)
    return Command(Code.POLICY_SECRET, (hierarchy, session), (PASSWORD,), parameters)


def activate_credential(key: int, endorsement_key: int, session: int, blob: bytes, secret: bytes) -> Command:
    sessions = (PASSWORD, session)
    return Command(Code.ACTIVATE_CREDENTIAL, (key, endorsement_key), sessions, sized(blob) + sized(secret))


def flush(handle: int) -> Command:
    # The handle is a parameter here, by the specification.
    return Command(Code.FLUSH_CONTEXT, parameters=u32(handle))


def list_handles(first: int) -> Command:
    return Command(Code.GET_CAPABILITY, parameters=u32(_CAP_HANDLES) + u32(first) + u32(_HANDLES_MAX))


def handles_of(response: Response) -> list[int]:
    reader = response.parameters
    reader.u8(), reader.u32()
    count = reader.u32()
    if count > _HANDLES_MAX:
        raise reader.wrong(f"lists {count} handles")
    return [reader.u32() for _ in range(count)]


def get_properties(first: int, count: int) -> Command:
    return Command(Code.GET_CAPABILITY, parameters=u32(_CAP_PROPERTIES) + u32(first) + u32(count))


def properties_of(response: Response) -> dict[int, int]:
    reader = response.parameters
    reader.u8(), reader.u32()
    count = reader.u32()
    if count > _HANDLES_MAX:
        raise reader.wrong(f"lists {count} properties")
    return {reader.u32(): reader.u32() for _ in range(count)}


def list_banks() -> Command:
    return Command(Code.GET_CAPABILITY, parameters=u32(_CAP_PCRS) + u32(0) + u32(1))
