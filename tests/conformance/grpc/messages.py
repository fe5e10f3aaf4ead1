"""The messages of the service ``grpc.testing.TestService``, by the numbers of its published fields.

The interoperability tests of all implementations of gRPC share this service (grpc/doc/interop-test-descriptions.md).
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "grpc.testing"
SERVICE = f"{PACKAGE}.TestService"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int32": _Field.TYPE_INT32,
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "string": _Field.TYPE_STRING,
}

# Per message: the fields as "name: [*]type = number"; * is repeated. Fields that no case reads are left out.
_MESSAGES: dict[str, str] = {
    "Empty": "",
    "Payload": "body: bytes = 2",
    "EchoStatus": "code: int32 = 1; message: string = 2",
    "SimpleRequest": "response_size: int32 = 2; payload: Payload = 3; response_status: EchoStatus = 7",
    "SimpleResponse": "payload: Payload = 1",
    "StreamingInputCallRequest": "payload: Payload = 1",
    "StreamingInputCallResponse": "aggregated_payload_size: int32 = 1",
    "ResponseParameters": "size: int32 = 1; interval_us: int32 = 2",
    "StreamingOutputCallRequest": (
        "response_parameters: *ResponseParameters = 2; payload: Payload = 3; response_status: EchoStatus = 7"
    ),
    "StreamingOutputCallResponse": "payload: Payload = 1",
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="interop.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split("; ")):
            field, _, rest = text.partition(": ")
            kind, _, number = rest.partition(" = ")
            result = message.field.add(name=field, number=int(number), label=_Field.LABEL_OPTIONAL)
            if kind.startswith("*"):
                result.label = _Field.LABEL_REPEATED
            plain = kind.lstrip("*")
            if plain in _SCALARS:
                result.type = _SCALARS[plain]
            else:
                result.type, result.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _classes()
Empty, Payload, EchoStatus, ResponseParameters = (
    _CLASSES[name] for name in ("Empty", "Payload", "EchoStatus", "ResponseParameters")
)
SimpleRequest, SimpleResponse = _CLASSES["SimpleRequest"], _CLASSES["SimpleResponse"]
InputRequest, InputResponse = _CLASSES["StreamingInputCallRequest"], _CLASSES["StreamingInputCallResponse"]
OutputRequest, OutputResponse = _CLASSES["StreamingOutputCallRequest"], _CLASSES["StreamingOutputCallResponse"]


def zeros(size: int) -> Any:  # noqa: ANN401 - a message of protobuf
    """A payload of ``size`` zero bytes."""
    return Payload(body=bytes(size))
