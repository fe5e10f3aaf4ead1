"""Settings of the queue-proxy container: quantities as written, or empty."""

import pytest

from serving.core.model.errors import SettingsError
from serving.core.settings.daemons import CONTROLLER, DAEMONS
from serving.core.settings.load import load
from serving.core.settings.sidecar import SidecarSettings


def new_settings(**variables: str) -> SidecarSettings:
    value = {f"SERVING_CONTROLLER_SIDECAR_{name.upper()}": text for name, text in variables.items()}
    return load(CONTROLLER, registry=DAEMONS, environment=value).settings.sidecar


def test_quantities_retain_their_text() -> None:
    settings = new_settings(cpu_request="0.1", memory_limit="1G", storage_limit="1Gi", stats_audience="us")
    assert (settings.cpu_request, settings.memory_limit, settings.storage_limit) == ("0.1", "1G", "1Gi")
    assert settings.stats_audience == "us"


def test_empty_quantity_is_valid() -> None:
    settings = new_settings(cpu_request="", memory_request="")
    assert (settings.cpu_request, settings.memory_request) == ("", "")


@pytest.mark.parametrize(
    ("name", "text"),
    [("cpu_limit", "much"), ("memory_request", "1 Gi"), ("stats_audience", "a b")],
)
def test_invalid_sidecar_setting_is_rejected(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"SERVING_CONTROLLER_SIDECAR_{name.upper()}"):
        new_settings(**{name: text})
