import datetime as dt

import pytest
import yaml

from serving.core.settings.yamltext import JsonTypesLoader, YamlLoader


@pytest.mark.parametrize("text", ["!!bool x", "!!int ''", "!!float x", "!!timestamp x", "a: [!!int 1_x]"])
@pytest.mark.parametrize("loader", [YamlLoader, JsonTypesLoader])
def test_a_scalar_that_is_not_of_its_tags_type_is_an_error_of_yaml(text: str, loader: type[YamlLoader]) -> None:
    with pytest.raises(yaml.MarkedYAMLError, match="this is no ") as raised:
        yaml.load(text, Loader=loader)  # noqa: S506 - it is safe
    assert raised.value.problem_mark is not None


def test_dates_are_texts_for_json() -> None:
    results = [yaml.load("2026-11-27", Loader=loader) for loader in (JsonTypesLoader, YamlLoader)]  # noqa: S506 - they are safe
    assert results == ["2026-11-27", dt.date(2026, 11, 27)]


def test_numbers_with_colons_are_texts_for_json() -> None:
    text = "[22:22, 12:30:45, 1:30.5, 22, 1.5]"
    assert yaml.load(text, Loader=JsonTypesLoader) == ["22:22", "12:30:45", "1:30.5", 22, 1.5]  # noqa: S506 - it is safe
