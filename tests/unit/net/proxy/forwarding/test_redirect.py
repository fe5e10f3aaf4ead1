"""The redirect of plain HTTP requests to HTTPS."""

import pytest

from serving.net.proxy.forwarding.redirect import https_location


@pytest.mark.parametrize(
    ("host", "target", "port", "location"),
    [
        (b"a.example", b"/", 443, b"https://a.example/"),
        (b"a.example:80", b"/x?y=1", 443, b"https://a.example/x?y=1"),
        (b"a.example:", b"/", 8443, b"https://a.example:8443/"),
        (b"a.example", b"//evil.example/", 443, b"https://a.example//evil.example/"),
        (b"[::1]", b"/", 443, b"https://[::1]/"),
        (b"[::1]:80", b"/", 8443, b"https://[::1]:8443/"),
        (b"a.example", b"*", 443, b"https://a.example/"),
    ],
)
def test_redirect_location_is_the_same_url_over_https(host: bytes, target: bytes, port: int, location: bytes) -> None:
    assert https_location(host, target, port=port) == location
