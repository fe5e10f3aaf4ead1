"""Conversion of HTTP errors to gRPC statuses."""

import pytest

from serving.net.proxy.http2.response import GrpcRefusal

TEXT = (b"content-type", b"text/plain; charset=utf-8")


def grpc_fields(status: int, body: bytes, *fields: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    refusal = GrpcRefusal.of(status, [(b":status", b"%d" % status), *fields])
    assert refusal is not None
    for at in range(0, len(body), 100):
        refusal.add(body[at : at + 100])
    return dict(refusal.fields())


@pytest.mark.parametrize(("status", "code"), [(400, b"13"), (404, b"12"), (503, b"14"), (504, b"14"), (418, b"2")])
def test_http_status_maps_to_grpc_status_and_message(status: int, code: bytes) -> None:
    result = grpc_fields(status, b"no such\nthing\n", TEXT, (b"content-length", b"15"), (b"retry-after", b"1"))
    assert result == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"retry-after": b"1",
        b"grpc-status": code,
        b"grpc-message": b"no such%0Athing",
    }


def test_html_body_is_no_grpc_message_and_long_text_is_truncated() -> None:
    assert grpc_fields(404, b"<html>", (b"content-type", b"text/html"))[b"grpc-message"] == b"HTTP status 404"
    assert len(grpc_fields(404, b"x" * 10_000, TEXT)[b"grpc-message"]) <= 600


def test_successful_and_grpc_responses_are_not_converted() -> None:
    assert GrpcRefusal.of(200, [TEXT]) is None
    assert GrpcRefusal.of(503, [(b"content-type", b"application/grpc")]) is None
