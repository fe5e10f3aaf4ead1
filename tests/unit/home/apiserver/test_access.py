import pytest

from serving.home.apiserver.access import LOOPBACK_HOSTS, check_host, check_token
from serving.home.apiserver.status import Fault

TOKEN = "secret"  # noqa: S105 - of no server


@pytest.mark.parametrize("header", ["127.0.0.1:6080", "localhost", "LOCALHOST:1", "[::1]:6080", "[::1]"])
def test_our_own_names_are_let_in(header: str) -> None:
    check_host(header, LOOPBACK_HOSTS)


@pytest.mark.parametrize(
    "header", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:6080", "[::2]"]
)
def test_other_names_are_refused(header: str) -> None:
    with pytest.raises(Fault) as caught:
        check_host(header, LOOPBACK_HOSTS)
    assert caught.value.code == 403


@pytest.mark.parametrize("header", ["Bearer secret", "bearer  secret "])
def test_the_token_opens(header: str) -> None:
    check_token(header, token=TOKEN)


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer secre", "Basic secret", "Bearer gehëim", "secret"])
def test_without_the_token_nothing_opens(header: str) -> None:
    with pytest.raises(Fault) as caught:
        check_token(header, token=TOKEN)
    assert caught.value.code == 401
