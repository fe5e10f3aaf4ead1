"""Parsing and caching of header lines."""

import pytest

from serving.net.proxy.http1 import lines
from serving.net.proxy.http1.lines import BadHeaderLine, header_lines, read_line, read_lines


def test_header_line_preserves_name_case_and_trims_value() -> None:
    line = read_line(b"X-Name:\t  some value \t")
    assert (line.name, line.value, line.wire) == (b"x-name", b"some value", b"X-Name: some value\r\n")
    assert (line.plain, line.matters) == (True, False)


@pytest.mark.parametrize(
    ("text", "plain", "matters"),
    [
        (b"Connection: Keep-Alive", False, False),
        (b"Connection: keep-alive, x", False, True),
        (b"Keep-Alive: 5", False, False),
        (b"Proxy-Authorization: x", False, False),
        (b"k-pod-secret: x", False, True),
        (b"Content-Length: 5", False, True),
        (b"Accept:", True, False),
        (b"X_A: 1", True, True),
        (b"User-Agent: x86_64", True, False),
    ],
)
def test_header_lines_are_classified_as_plain_and_relevant(text: bytes, plain: bool, matters: bool) -> None:
    line = read_line(text)
    assert (line.plain, line.matters) == (plain, matters)


@pytest.mark.parametrize("host", [b"a", b"a.b:80", b"127.0.0.1", b"[::1]:8080", b"a_b", b"a:"])
def test_host_may_be_name_or_address_with_port(host: bytes) -> None:
    assert read_line(b"Host: " + host).value == host


@pytest.mark.parametrize(
    "host", [b"", b"a b", b"a/b", b"u@a", b"::1", b"[::1", b"a:b", b"a:123456", b"a,b\xff", b"a#b"]
)
def test_invalid_host_is_rejected(host: bytes) -> None:
    with pytest.raises(BadHeaderLine):
        read_line(b"Host: " + host)


@pytest.mark.parametrize("text", [b"Cookie: a=b", b"Authorization: x", b"A: " + b"x" * 200])
def test_secret_and_long_lines_are_not_cached(text: bytes) -> None:
    lines._remembered.clear()
    read_lines([text])
    assert lines._remembered == {}


def test_line_cache_is_bounded() -> None:
    lines._remembered.clear()
    for number in range(5000):
        read_line(b"A: %d" % number)
    assert 0 < len(lines._remembered) <= lines._REMEMBERED_MAX


def test_repeated_line_is_read_from_cache() -> None:
    (first,), (second,) = read_lines([b"A: b"]), read_lines([b"A: b"])
    assert first is second


def test_header_lines_are_encoded() -> None:
    assert header_lines((b"A", b"1"), (b"B", b"2")) == b"A: 1\r\nB: 2\r\n"
