"""Rewritten heads of requests."""

import pytest

from serving.net.proxy.http1.rendering import ClientPeer, render_date, render_request, render_response
from serving.net.proxy.http1.requesthead import read_request_head

CLAIMS = b"\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: x\r\nForwarded: for=9.9.9.9"


def forwarded(
    headers: bytes,
    *,
    address: str = "10.0.0.1",
    trusted: bool = False,
    host: bytes = b"h",
    known: bool = False,
    replaces: bool = False,
) -> list[bytes]:
    raw = b"GET / HTTP/1.1\r\nHost: %b%b" % (host, headers)
    head = read_request_head(raw, header_count_max=10)
    peer = ClientPeer(address, is_trusted=known, replaces=replaces)
    lines = render_request(head, peer=peer, host=head.host, trusted=trusted).split(b"\r\n")
    return [line.partition(b": ")[2] for line in lines if line.startswith((b"X-Forwarded", b"Forwarded"))]


@pytest.mark.parametrize(
    ("address", "host", "element"),
    [
        ("10.0.0.1", b"h", b"for=10.0.0.1;host=h;proto=http"),
        ("10.0.0.1", b"h:80", b'for=10.0.0.1;host="h:80";proto=http'),
        ("::1", b"[::1]:80", b'for="[::1]";host="[::1]:80";proto=http'),
    ],
)
def test_forwarded_header_follows_rfc_7239(address: str, host: bytes, element: bytes) -> None:
    assert forwarded(b"", address=address, host=host) == [address.encode(), host, b"http", element]


def test_trusted_peer_headers_are_preserved_and_address_appended() -> None:
    assert forwarded(CLAIMS, trusted=True) == [b"1.1.1.1, 10.0.0.1", b"x", b"https", b"for=9.9.9.9"]


def test_known_proxy_headers_are_preserved() -> None:
    assert forwarded(CLAIMS, known=True) == [b"1.1.1.1, 10.0.0.1", b"x", b"https", b"for=9.9.9.9"]
    assert forwarded(b"", known=True)[2] == b"http"


@pytest.mark.parametrize(
    ("is_trusted", "claim", "scheme"),
    [
        (True, b"\r\nX-Forwarded-Proto: HTTPS", b"https"),
        (True, b"\r\nX-Forwarded-For: a", b"http"),
        (True, b"", b"http"),
        (False, b"\r\nX-Forwarded-Proto: https", b"http"),
    ],
)
def test_client_scheme_is_read_from_trusted_proxy_only(is_trusted: bool, claim: bytes, scheme: bytes) -> None:
    head = read_request_head(b"GET / HTTP/1.1\r\nHost: h" + claim, header_count_max=10)
    assert ClientPeer("10.0.0.1", is_trusted=is_trusted).scheme_of(head) == scheme


def test_untrusted_peer_keeps_only_forwarded_for_chain() -> None:
    assert forwarded(CLAIMS) == [b"1.1.1.1, 10.0.0.1", b"h", b"http", b"for=1.1.1.1;host=h;proto=http, for=10.0.0.1"]


def test_replace_setting_discards_forwarded_for_of_untrusted_peers_only() -> None:
    assert forwarded(CLAIMS, replaces=True) == [b"10.0.0.1", b"h", b"http", b"for=10.0.0.1;host=h;proto=http"]
    assert forwarded(CLAIMS, replaces=True, known=True)[0] == b"1.1.1.1, 10.0.0.1"
    assert forwarded(CLAIMS, replaces=True, trusted=True)[0] == b"1.1.1.1, 10.0.0.1"


def test_repeated_forwarded_for_headers_are_joined() -> None:
    assert forwarded(b"\r\nX-Forwarded-For: a\r\nX-Forwarded-For: b, c")[0] == b"a, b, c, 10.0.0.1"


def test_quote_in_forwarded_for_is_escaped_in_forwarded() -> None:
    assert forwarded(b'\r\nX-Forwarded-For: a";proto=https')[3] == (
        b'for="a\\";proto=https";host=h;proto=http, for=10.0.0.1'
    )


def test_rendered_lines_are_not_reused_for_another_host() -> None:
    peer = ClientPeer("10.0.0.1")
    for host in (b"a", b"b", b"a"):
        head = read_request_head(b"GET / HTTP/1.1\r\nHost: " + host, header_count_max=10)
        assert b"X-Forwarded-Host: %b\r\n" % host in render_request(head, peer=peer, host=host)


def test_te_trailers_is_forwarded_to_upstream() -> None:
    head = read_request_head(b"GET / HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nConnection: TE", header_count_max=10)
    assert b"Connection: te\r\nTE: trailers\r\n" in render_request(head, peer=ClientPeer("a"), host=b"h")


def test_local_response_has_reason_and_content_length() -> None:
    assert render_response(599, body=b"abc") == b"HTTP/1.1 599 Unknown\r\nContent-Length: 3\r\n\r\nabc"
    assert render_response(200, body=b"abc", bodiless=True, close=True) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
    )


def test_date_header_has_http_format() -> None:
    # The example of RFC 9110, 5.6.7.
    assert render_date(784111777.9) == b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    assert render_date(784111778.0) == b"Date: Sun, 06 Nov 1994 08:49:38 GMT\r\n"
