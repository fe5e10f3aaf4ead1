"""Derived values of the settings of TLS."""

import pytest

from serving.core.model.errors import SettingsError
from serving.core.settings.activator import ActivatorSettings
from serving.core.settings.daemons import ACTIVATOR, DAEMONS
from serving.core.settings.load import load
from serving.core.settings.tls import TlsSettings

PREFIX = "SERVING_ACTIVATOR_"


def loaded(**environment: str) -> ActivatorSettings:
    value = {f"{PREFIX}{name}": text for name, text in environment.items()}
    return load(ACTIVATOR, registry=DAEMONS, environment=value).settings


def test_tls_is_off_without_certificate_source() -> None:
    assert not TlsSettings().is_on
    assert all(
        tls.is_on for tls in (TlsSettings(certificate_files="x"), TlsSettings(folder="x"), TlsSettings(secrets="x"))
    )


def test_lists_are_separated_by_commas() -> None:
    tls = loaded(TLS_CERTIFICATE_FILES="/a.crt, /b.crt", TLS_KEY_FILES="/a.key,/b.key,", TLS_SECRETS="one , two").tls
    assert tls.pairs == [("/a.crt", "/a.key"), ("/b.crt", "/b.key")]
    assert tls.secret_names == ["one", "two"]


def test_each_certificate_requires_key() -> None:
    with pytest.raises(SettingsError, match="TLS_KEY_FILES: 1 keys for 2 certificates; expected one key for each"):
        loaded(TLS_CERTIFICATE_FILES="/a.crt,/b.crt", TLS_KEY_FILES="/a.key")


def test_redirect_requires_tls_port_or_certificates() -> None:
    with pytest.raises(SettingsError, match="HTTP_PROTOCOL: there is no TLS to redirect to"):
        loaded(HTTP_PROTOCOL="redirected")
    assert loaded(HTTP_PROTOCOL="redirected", TLS_PUBLIC_PORT="443").http_protocol == "Redirected"
    assert loaded(HTTP_PROTOCOL="Redirected", TLS_FOLDER="/certificates").http_protocol == "Redirected"
    with pytest.raises(SettingsError, match="expected one of Enabled, Redirected"):
        loaded(HTTP_PROTOCOL="off")
