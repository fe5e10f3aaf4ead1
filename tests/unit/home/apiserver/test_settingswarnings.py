from typing import Any

import pytest

from serving.cluster.kinds import CONFIG_MAP, SECRET
from serving.home.apiserver.settingswarnings import settings_warnings


def config_map(name: str = "config-autoscaler", namespace: str = "knative-serving", **data: str) -> dict[str, Any]:
    texts = {key if key == "_example" else key.replace("_", "-"): text for key, text in data.items()}
    return {"metadata": {"name": name, "namespace": namespace}, "data": texts}


def test_an_unknown_key_and_an_invalid_value_are_reported_to_the_writer() -> None:
    unknown, invalid = sorted(settings_warnings(CONFIG_MAP, config_map(stabel_window="30s", max_scale="many")))
    assert "config-autoscaler has no key stabel-window" in unknown
    assert "did you mean stable-window?" in unknown
    assert "max-scale: 'many' is not right" in invalid


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (CONFIG_MAP, config_map(stable_window="30s", _example="x: y")),
        (CONFIG_MAP, config_map(namespace="default", nonsense="1")),
        (CONFIG_MAP, config_map(name="of-an-app", nonsense="1")),
        (CONFIG_MAP, {"metadata": {"name": "config-autoscaler", "namespace": "knative-serving"}}),
        (SECRET, config_map(nonsense="1")),
    ],
)
def test_other_objects_get_no_warning(kind: Any, stored: dict[str, Any]) -> None:  # noqa: ANN401 - a kind
    assert settings_warnings(kind, stored) == []
