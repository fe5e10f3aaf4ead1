"""Which session a request belongs to."""

import pytest

from serving.activator.routing.sessions import new_session, session_in_cookies, session_in_header
from serving.traffic.sessions import session_number


def test_the_cookie_of_a_new_session_is_read_back() -> None:
    number, line = new_session(bytes(range(16)), is_secure=False)
    cookie = line.removeprefix(b"Set-Cookie: ").split(b";")[0]
    assert session_in_cookies([b"a=1; " + cookie + b"; b=2"]) == number
    assert line.endswith(b"; Path=/; HttpOnly; SameSite=Lax\r\n")


def test_over_tls_the_cookie_is_secure() -> None:
    assert new_session(bytes(16), is_secure=True)[1].endswith(b"; Secure\r\n")


@pytest.mark.parametrize("cookies", [[], [b""], [b"a=1"], [b"serving-session"], [b"serving-session=" + b"x" * 65]])
def test_a_request_without_our_cookie_has_no_session(cookies: list[bytes]) -> None:
    assert session_in_cookies(cookies) is None


def test_a_header_names_a_session_by_its_first_value() -> None:
    assert session_in_header([b"ada", b"bob"]) == session_number(b"ada")
    assert session_in_header([b""]) is None
    assert session_in_header([]) is None
