"""Settings of the extender's TLS."""

import pytest

from serving.settings.extendertls import ExtenderTlsSettings


def test_files_are_right_together_only() -> None:
    assert list(ExtenderTlsSettings().check()) == []
    assert list(ExtenderTlsSettings(certificate_file="c", key_file="k", client_ca_file="a").check()) == []


@pytest.mark.parametrize("given", [{"certificate_file": "c"}, {"key_file": "k"}, {"client_ca_file": "a"}])
def test_one_without_the_others_is_a_clash(given: dict[str, str]) -> None:
    (clash,) = ExtenderTlsSettings(**given).check()  # type: ignore[arg-type]
    assert clash.fields[0].startswith("tls.")


def test_the_files_that_are_read() -> None:
    assert ExtenderTlsSettings(certificate_file="c", key_file="k").paths == ("c", "k")
