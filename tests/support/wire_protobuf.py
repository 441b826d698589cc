"""The protobuf library as judge of our packets: the schema, built without protoc.

``PACKET`` is the schema as it is. ``PACKET_OF_BYTES`` declares every string as bytes: it
decides whether a message is well-formed, except that its text is UTF-8.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bootbridge.wire import packets as p

INT64 = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
ENUM = descriptor_pb2.FieldDescriptorProto.TYPE_ENUM

MESSAGES: dict[str, list[tuple[int, str, int]]] = {
    "DialRequest": [(1, "protocol", STRING), (2, "address", STRING), (3, "random", INT64)],
    "DialResponse": [(1, "error", STRING), (2, "connectID", INT64), (3, "random", INT64)],
    "CloseRequest": [(1, "connectID", INT64)],
    "CloseResponse": [(1, "error", STRING), (2, "connectID", INT64)],
    "CloseDial": [(1, "random", INT64)],
    "Drain": [],
    "Data": [(1, "connectID", INT64), (2, "error", STRING), (3, "data", BYTES)],
    "Credit": [(1, "connectID", INT64), (2, "size", INT64)],
    "End": [(1, "connectID", INT64)],
    "Reset": [(1, "connectID", INT64)],
}
PAYLOADS = {
    "dialRequest": (2, "DialRequest"),
    "dialResponse": (3, "DialResponse"),
    "data": (4, "Data"),
    "closeRequest": (5, "CloseRequest"),
    "closeResponse": (6, "CloseResponse"),
    "closeDial": (7, "CloseDial"),
    "drain": (8, "Drain"),
    "credit": (p.CREDIT, "Credit"),
    "end": (p.END, "End"),
    "reset": (p.RESET, "Reset"),
}


def _schema(text: int) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"packets{text}.proto", syntax="proto3")
    enum = file.enum_type.add(name="PacketType")
    for number, name in p.TYPE_NAMES.items():
        enum.value.add(name=name, number=number)
    for message_name, fields in MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, field_name, kind in fields:
            _field(message, number, field_name, text if kind == STRING else kind)
    packet = file.message_type.add(name="Packet")
    packet.oneof_decl.add(name="payload")
    _field(packet, 1, "type", ENUM, type_name=".PacketType")
    for field_name, (number, type_name) in PAYLOADS.items():
        _field(packet, number, field_name, MESSAGE, type_name=f".{type_name}", oneof_index=0)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Packet"))


def _field(message: Any, number: int, name: str, kind: int, **more: Any) -> None:
    message.field.add(name=name, number=number, type=kind, label=1, **more)


PACKET: Any = _schema(STRING)
PACKET_OF_BYTES: Any = _schema(BYTES)


def to_protobuf(packet: p.Packet) -> Any:
    """The same packet, as the protobuf library's object."""
    message = PACKET(type=packet.type)
    match packet:
        case p.DialRequest():
            _fill(message.dialRequest, protocol=packet.protocol, address=packet.address, random=packet.random)
        case p.DialResponse():
            _fill(message.dialResponse, error=packet.error, connectID=packet.connect_id, random=packet.random)
        case p.CloseRequest():
            _fill(message.closeRequest, connectID=packet.connect_id)
        case p.CloseResponse():
            _fill(message.closeResponse, error=packet.error, connectID=packet.connect_id)
        case p.Data():
            _fill(message.data, connectID=packet.connect_id, data=packet.data)
        case p.CloseDial():
            _fill(message.closeDial, random=packet.random)
        case p.Drain():
            _fill(message.drain)
        case p.Credit():
            _fill(message.credit, connectID=packet.connect_id, size=packet.size)
        case p.End():
            _fill(message.end, connectID=packet.connect_id)
        case p.Reset():
            _fill(message.reset, connectID=packet.connect_id)
    return message


def _fill(message: Any, **fields: Any) -> None:
    message.SetInParent()
    for name, value in fields.items():
        setattr(message, name, value)


def from_protobuf(message: Any) -> p.Packet:
    """What Konnectivity's peers make of a parsed message: the type decides, getters do the rest."""

    def text(value: str | bytes) -> str:
        return value.decode() if isinstance(value, bytes) else value

    match message.type:
        case p.DIAL_REQ:
            dial = message.dialRequest
            return p.DialRequest(text(dial.protocol), text(dial.address), dial.random)
        case p.DIAL_RSP:
            answer = message.dialResponse
            return p.DialResponse(text(answer.error), answer.connectID, answer.random)
        case p.CLOSE_REQ:
            return p.CloseRequest(message.closeRequest.connectID)
        case p.CLOSE_RSP:
            return p.CloseResponse(text(message.closeResponse.error), message.closeResponse.connectID)
        case p.DATA:
            return p.Data(message.data.connectID, message.data.data)
        case p.DIAL_CLS:
            return p.CloseDial(message.closeDial.random)
        case p.DRAIN:
            return p.Drain()
        case p.CREDIT:
            return p.Credit(message.credit.connectID, message.credit.size)
        case p.END:
            return p.End(message.end.connectID)
        case p.RESET:
            return p.Reset(message.reset.connectID)
    return p.Unknown(message.type)
