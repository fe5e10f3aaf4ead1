"""The server name is read from a ClientHello in any chunks and records; other bytes are rejected."""

import contextlib
import ssl
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.net.proxy.server.clienthello import HELLO_BYTES_MAX, BadClientHello, read_server_name

# The first value of GREASE (RFC 8701), and the extensions of ECH (RFC 9849) and padding.
GREASE, ECH, PADDING = 0x0A0A, 0xFE0D, 21
Extension = tuple[int, bytes]

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=6).map(".".join)
unknown = st.tuples(st.sampled_from([GREASE, ECH, PADDING, 43, 51]), st.binary(max_size=300))


def sized(data: bytes, size: int) -> bytes:
    return len(data).to_bytes(size) + data


def named(name: bytes, kind: int = 0) -> Extension:
    return 0, sized(bytes([kind]) + sized(name, 2), 2)


def hello(*extensions: Extension, session: bytes = b"", has_extensions: bool = True) -> bytes:
    """The handshake message of a ClientHello."""
    listed = b"".join(kind.to_bytes(2) + sized(content, 2) for kind, content in extensions)
    suites = sized(GREASE.to_bytes(2) + b"\x13\x01", 2)
    body = b"\x03\x03" + bytes(32) + sized(session, 1) + suites + sized(b"\0", 1)
    return b"\x01" + sized(body + (sized(listed, 2) if has_extensions else b""), 3)


def records(message: bytes, sizes: Iterable[int] = ()) -> bytes:
    """The message in records of these sizes, with the rest in a final record."""
    data = b""
    for size in sizes:
        if 0 < size < len(message):
            data += b"\x16\x03\x01" + sized(message[:size], 2)
            message = message[size:]
    return data + b"\x16\x03\x01" + sized(message, 2)


def real(name: str | None, *, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """The first bytes that an OpenSSL client sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("name", "server_name"), [("DB.default.localhost", "db.default.localhost"), (None, ""), ("1.2.3.4", "")]
)
def test_server_name_of_an_openssl_client_is_read(name: str | None, server_name: str, version: ssl.TLSVersion) -> None:
    data = real(name, version=version)
    assert read_server_name(data) == server_name
    assert all(read_server_name(data[:count]) is None for count in range(len(data)))
    # Later bytes belong to the handshake.
    assert read_server_name(data + b"\x14\x03\x03\0\1\1") == server_name


@given(names, st.lists(unknown, max_size=5), st.lists(unknown, max_size=5), st.binary(max_size=32))
def test_unknown_client_hello_extensions_are_skipped(
    name: str, before: list[Extension], after: list[Extension], session: bytes
) -> None:
    data = records(hello(*before, named(name.encode()), *after, session=session))
    assert read_server_name(data) == name


@given(names, st.lists(st.integers(1, 60), max_size=12))
def test_client_hello_is_read_across_records_and_needs_all_bytes(name: str, sizes: list[int]) -> None:
    data = records(hello((ECH, bytes(100)), named(name.encode())), sizes)
    assert read_server_name(data) == name
    assert all(read_server_name(data[:count]) is None for count in range(len(data)))


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_rejected_or_incomplete(data: bytes) -> None:
    with contextlib.suppress(BadClientHello):
        assert read_server_name(data) is None


@given(st.data())
def test_corrupted_client_hello_yields_a_valid_name_or_a_rejection(data: st.DataObject) -> None:
    wire = bytearray(real("db.default.localhost"))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadClientHello):
        server_name = read_server_name(bytes(wire))
        assert server_name is None or (server_name.isascii() and len(server_name) < 254)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "not a TLS handshake"),
        (b"\x80\x2e\x01\x00\x02", "not a TLS handshake"),
        (b"\x16\x02\x01", "not a TLS handshake"),
        # SSLRequest of PostgreSQL clients without direct TLS.
        (b"\0\0\0\x08\x04\xd2\x16\x2f", "not a TLS handshake"),
        (b"\x16\x03\x01\0\0", "a TLS record of 0 bytes"),
        (b"\x16\x03\x01\xff\xff", "a TLS record of 65535 bytes"),
        (records(b"\x02" + sized(b"x", 3)), "no ClientHello"),
        (b"\x16\x03\x01\x10\0\x01" + HELLO_BYTES_MAX.to_bytes(3), "16384 are allowed"),
        (records(hello(named(b"a")), [1] * 20), "in more than 16 records"),
        (records(hello(named(b"a"), named(b"a"))), "two extensions"),
        (records(hello(named(b"a", kind=1))), "not one host name"),
        (records(hello((0, sized((b"\0" + sized(b"a", 2)) * 2, 2)))), "not one host name"),
        (records(hello((0, b"\0\xff"))), "longer than what is around it"),
        (records(hello(named(b""))), "no host name"),
        (records(hello(named(b"a b"))), "no host name"),
        (records(hello(named(b"a\0b"))), "no host name"),
        (records(hello(named("b\u00fccher".encode()))), "no host name"),
        (records(hello(named(b"a."))), "no host name"),
        (records(hello(named(b"a." * 126 + b"aaa"))), "no host name"),
        (records(b"\x01" + sized(hello(named(b"a"))[4:] + b"x", 3)), "bytes after the extensions"),
        (records(b"\x01" + sized(b"\x03\x03", 3)), "longer than what is around it"),
    ],
)
def test_malformed_client_hello_is_rejected_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(BadClientHello, match=why):
        read_server_name(data)


def test_client_hello_without_extensions_has_no_server_name() -> None:
    assert read_server_name(records(hello(has_extensions=False))) == ""
    assert read_server_name(records(hello())) == ""
