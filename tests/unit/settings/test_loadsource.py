"""Settings of where node loads come from."""

import pytest

from serving.settings.loadsource import PROMETHEUS, SIGNALFX, LoadSourceSettings


@pytest.mark.parametrize("url", ["ftp://x", "prometheus:9090", "http://", "http://[", "http://user:secret@x"])
def test_a_url_that_cannot_be_asked_is_a_clash_and_not_repeated(url: str) -> None:
    (clash,) = LoadSourceSettings(source=PROMETHEUS, url=url).check()
    assert clash.fields == ("load.url",)
    assert "secret" not in clash.what + clash.expected


def test_signalfx_needs_a_token() -> None:
    (clash,) = LoadSourceSettings(source=SIGNALFX).check()
    assert clash.fields == ("load.token_file",)
    assert list(LoadSourceSettings(source=SIGNALFX, token_file="/token").check()) == []  # noqa: S106 - a path


def test_each_source_has_an_address_of_its_own() -> None:
    assert LoadSourceSettings(source=SIGNALFX).address == "https://api.signalfx.com"
    assert LoadSourceSettings(source=PROMETHEUS, url="http://p:9/").address == "http://p:9"
