"""Conversion of heads between HTTP/2 fields and HTTP/1.1 lines."""

import pytest

from serving.net.proxy.http1.requesthead import RequestHead, RequestRefusal
from serving.net.proxy.http1.responsehead import BadResponse, Framing
from serving.net.proxy.http2.heads import (
    Malformed,
    read_request_fields,
    read_response_fields,
    read_trailer_fields,
    request_fields,
    response_fields,
)

GET = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/a?b"), (b":authority", b"h"))
POST = ((b":method", b"POST"), *GET[1:])


def read(*fields: tuple[bytes, bytes], ended: bool = True) -> RequestHead:
    return read_request_fields(fields, ended=ended, head_bytes_max=1000, header_count_max=20)


def test_request_fields_are_read_as_http1_head() -> None:
    head = read(*GET, (b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"b=2"), (b"te", b"trailers"))
    assert (head.method, head.target, head.host, head.has_body) == (b"GET", b"/a?b", b"h", False)
    assert head.get(b"cookie") == b"a=1; b=2"
    assert head.trailers_wanted


def test_request_body_has_length_or_is_chunked() -> None:
    assert read(*POST, ended=False).chunked
    assert read(*POST, (b"content-length", b"5"), ended=False).content_length == 5
    assert not read(*POST, (b"content-length", b"0")).has_body


def test_host_field_replaces_missing_authority() -> None:
    assert read(*GET[:3], (b"host", b"there")).host == b"there"
    assert read(*GET, (b"host", b"H")).host == b"h"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ((*GET, (b"host", b"other")), 400),
        (((b":method", b"CONNECT"), (b":authority", b"h")), 405),
        ((*GET[:2], (b":path", b"a"), GET[3]), 400),
        ((*GET, (b"x", b"y" * 900)), 431),
        ((*GET, *[(b"x", b"")] * 21), 431),
    ],
)
def test_unsupported_request_fields_are_rejected(fields: tuple[tuple[bytes, bytes], ...], status: int) -> None:
    with pytest.raises(RequestRefusal) as caught:
        read(*fields)
    assert caught.value.status == status


def test_content_length_without_body_is_malformed() -> None:
    with pytest.raises(Malformed):
        read(*POST, (b"content-length", b"5"))


def test_response_fields_are_read_with_framing() -> None:
    def framing(*fields: tuple[bytes, bytes], ended: bool = False, method: bytes = b"GET") -> Framing:
        return read_response_fields(fields, ended=ended, method=method, header_count_max=9).framing

    assert framing((b":status", b"200")) is Framing.CHUNKED
    assert framing((b":status", b"200"), (b"content-length", b"3")) is Framing.LENGTH
    assert framing((b":status", b"200"), ended=True) is Framing.NONE
    assert framing((b":status", b"200"), (b"content-length", b"3"), ended=True, method=b"HEAD") is Framing.NONE


def test_bodiless_response_without_length_has_no_length() -> None:
    for status, method in ((b"200", b"HEAD"), (b"304", b"GET")):
        head = read_response_fields([(b":status", status)], ended=True, method=method, header_count_max=9)
        assert head.content_length is None


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b"x", b"y")],
        [(b":status", b"2000")],
        [(b":status", b"200"), (b":status", b"200")],
        [(b":status", b"200"), (b"connection", b"close")],
        [(b":status", b"200"), (b"X", b"y")],
        [(b":status", b"200"), (b"x", b"a\nb")],
    ],
)
def test_malformed_response_fields_are_rejected(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Malformed):
        read_response_fields(fields, ended=True, method=b"GET", header_count_max=9)


def test_response_101_or_without_its_body_is_bad() -> None:
    for fields in ([(b":status", b"101")], [(b":status", b"200"), (b"content-length", b"5")]):
        with pytest.raises(BadResponse):
            read_response_fields(fields, ended=True, method=b"GET", header_count_max=9)


def test_framing_trailers_are_removed_and_pseudo_headers_rejected() -> None:
    assert read_trailer_fields([(b"grpc-status", b"0"), (b"content-length", b"5")]) == b"grpc-status: 0\r\n"
    with pytest.raises(Malformed):
        read_trailer_fields([(b":path", b"/")])


def test_http1_request_is_encoded_as_fields() -> None:
    raw = b"POST /a HTTP/1.1\r\nHost: h\r\nX: y\r\nTransfer-Encoding: chunked\r\nConnection: te\r\nTE: trailers"
    expected = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"h")]
    assert request_fields(raw) == [*expected, (b"x", b"y"), (b"te", b"trailers")]


def test_http1_response_is_encoded_as_fields() -> None:
    results = response_fields(200, [b"X: y\r\n", b"Connection: close\r\n"], length=3)
    assert results == [(b":status", b"200"), (b"x", b"y"), (b"content-length", b"3")]
