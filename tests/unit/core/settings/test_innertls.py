"""The mode of inner TLS: values of Knative in any case, local values, and the environment's default."""

import pytest

from serving.core.model.errors import SettingsError
from serving.core.settings.daemons import ACTIVATOR, DAEMONS
from serving.core.settings.innertls import DEFAULT_VARIABLE, OF_KEY_VARIABLE, InnerTlsSettings
from serving.core.settings.knob import ConfigMap, ConfigMapEntry
from serving.core.settings.load import load


@pytest.mark.parametrize("text", ["enabled", "Enabled", "ENABLED"])
def test_knative_key_and_values_enable_strict_mode_in_any_case(text: str) -> None:
    entry = ConfigMapEntry(key="system-internal-tls", text=text, where="here:1")
    config = ConfigMap(name="config-network", where="here", entries=(entry,))
    settings = load(ACTIVATOR, registry=DAEMONS, config_maps=[config]).settings.inner_tls
    assert settings.resolved({}).is_strict


@pytest.mark.parametrize(
    ("mode", "default", "is_on", "is_strict"),
    [
        ("", None, False, False),
        ("", "enabled", True, True),
        ("Disabled", "Enabled", False, False),
        ("Permissive", "Enabled", True, False),
    ],
)
def test_environment_sets_default_mode(mode: str, default: str | None, *, is_on: bool, is_strict: bool) -> None:
    environment = {} if default is None else {DEFAULT_VARIABLE: default}
    settings = InnerTlsSettings(mode=mode).resolved(environment)
    assert (settings.is_on, settings.is_strict) == (is_on, is_strict)


@pytest.mark.parametrize(("of_key", "mode"), [("Enabled", "Enabled"), ("", "Permissive")])
def test_mode_defaults_to_that_of_installed_key(of_key: str, mode: str) -> None:
    environment = {OF_KEY_VARIABLE: of_key, DEFAULT_VARIABLE: "Permissive"}
    assert InnerTlsSettings().resolved(environment).mode == mode
    assert InnerTlsSettings(mode="Disabled").resolved(environment).mode == "Disabled"
    with pytest.raises(SettingsError, match="SERVING_INNER_TLS_OF_KEY"):
        InnerTlsSettings().resolved({**environment, OF_KEY_VARIABLE: "yes"})


def test_invalid_default_mode_is_reported() -> None:
    with pytest.raises(SettingsError, match=r"SERVING_INNER_TLS_DEFAULT.*'Yes'.*Permissive"):
        InnerTlsSettings().resolved({DEFAULT_VARIABLE: "yes"})
