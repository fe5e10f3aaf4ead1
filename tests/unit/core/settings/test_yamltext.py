import datetime as dt

import pytest
import yaml

from serving.core.settings.yamltext import JsonTypesLoader, YamlLoader


@pytest.mark.parametrize("text", ["!!bool x", "!!int ''", "!!float x", "!!timestamp x", "a: [!!int 1_x]"])
@pytest.mark.parametrize("loader", [YamlLoader, JsonTypesLoader])
def test_scalar_not_matching_its_tag_is_yaml_error(text: str, loader: type[YamlLoader]) -> None:
    with pytest.raises(yaml.MarkedYAMLError, match="this is no ") as raised:
        yaml.load(text, Loader=loader)  # noqa: S506 - it is safe
    assert raised.value.problem_mark is not None


def test_json_loader_reads_dates_as_text() -> None:
    results = [yaml.load("2026-11-27", Loader=loader) for loader in (JsonTypesLoader, YamlLoader)]  # noqa: S506 - they are safe
    assert results == ["2026-11-27", dt.date(2026, 11, 27)]


def test_json_loader_reads_numbers_with_colons_as_text() -> None:
    text = "[22:22, 12:30:45, 1:30.5, 22, 1.5]"
    assert yaml.load(text, Loader=JsonTypesLoader) == ["22:22", "12:30:45", "1:30.5", 22, 1.5]  # noqa: S506 - it is safe
