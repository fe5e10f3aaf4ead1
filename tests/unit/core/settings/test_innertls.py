"""The mode of inner TLS: Knative's values in either case, ours, and the environment's where none is set."""

import pytest

from serving.core.model.errors import SettingsError
from serving.core.settings.daemons import ACTIVATOR, DAEMONS
from serving.core.settings.innertls import DEFAULT_VARIABLE, OF_KEY_VARIABLE, InnerTlsSettings
from serving.core.settings.knob import ConfigMap, ConfigMapEntry
from serving.core.settings.load import load


@pytest.mark.parametrize("text", ["enabled", "Enabled", "ENABLED"])
def test_knatives_key_and_values_are_taken(text: str) -> None:
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
def test_the_environment_counts_where_no_mode_is_set(
    mode: str, default: str | None, *, is_on: bool, is_strict: bool
) -> None:
    environment = {} if default is None else {DEFAULT_VARIABLE: default}
    settings = InnerTlsSettings(mode=mode).resolved(environment)
    assert (settings.is_on, settings.is_strict) == (is_on, is_strict)


@pytest.mark.parametrize(("of_key", "mode"), [("Enabled", "Enabled"), ("", "Permissive")])
def test_an_installation_keeps_the_mode_that_it_was_made_with(of_key: str, mode: str) -> None:
    environment = {OF_KEY_VARIABLE: of_key, DEFAULT_VARIABLE: "Permissive"}
    assert InnerTlsSettings().resolved(environment).mode == mode
    assert InnerTlsSettings(mode="Disabled").resolved(environment).mode == "Disabled"
    with pytest.raises(SettingsError, match="SERVING_INNER_TLS_OF_KEY"):
        InnerTlsSettings().resolved({**environment, OF_KEY_VARIABLE: "yes"})


def test_a_wrong_default_is_named() -> None:
    with pytest.raises(SettingsError, match=r"SERVING_INNER_TLS_DEFAULT.*'Yes'.*Permissive"):
        InnerTlsSettings().resolved({DEFAULT_VARIABLE: "yes"})
