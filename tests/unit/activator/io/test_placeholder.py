"""The page that a browser shows while a pod starts."""

import pytest

from serving.activator.io.placeholder import placeholder_page, wants_placeholder


@pytest.mark.parametrize(
    ("method", "accept", "wants"),
    [
        (b"GET", b"text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", True),
        (b"GET", b"application/json, Text/HTML;q=0.9", True),
        (b"POST", b"text/html", False),
        (b"GET", b"*/*", False),
        (b"GET", b"application/json", False),
        (b"GET", None, False),
    ],
)
def test_placeholder_is_sent_only_for_get_requests_that_accept_html(
    method: bytes, accept: bytes | None, *, wants: bool
) -> None:
    assert wants_placeholder(method, accept) is wants


def test_placeholder_page_escapes_the_service_name() -> None:
    page = placeholder_page("<script>").decode()
    assert "<h1>&lt;script&gt; is starting</h1>" in page
    assert "<script>" not in page
