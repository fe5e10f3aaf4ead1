import pytest

from serving.core.model.errors import InvalidValue
from serving.tools.cli.services.get import rendered

VALUE = {
    "items": [
        {"metadata": {"name": "a", "labels": {"x.y/z": "1"}}, "ports": [80, 81]},
        {"metadata": {"name": "b"}, "ready": True},
    ]
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.items[*].metadata.name}", "a b"),
        (".items[0].metadata.name", "a"),
        ("{.items[-1].ready}", "true"),
        ("{.items[0].ports}", "[80,81]"),
        ("{$.items[0].metadata.labels['x.y/z']}", "1"),
        (r"{.items[0].metadata.labels.x\.y/z}", "1"),
        ("name: {.items[0].metadata.name}!", "name: a!"),
        ("{.none}", ""),
        (r'{range .items[*]}{.metadata.name}{"\n"}{end}', "a\nb\n"),
        (r"{range .items[*]}{@.metadata.name}\t{range .ports[*]}<{}>{end};{end}", "a\t<80><81>;b\t;"),
        ("{.items[?(@.ready=='True')].metadata.name}", "b"),
    ],
)
def test_jsonpath_template_is_rendered_as_by_kubectl(template: str, text: str) -> None:
    assert rendered(template, VALUE) == text


@pytest.mark.parametrize("template", ["{.a", "{..a}", "{end}", "{range .items[*]}", "{.a}}"])
def test_invalid_jsonpath_template_raises(template: str) -> None:
    with pytest.raises(InvalidValue):
        rendered(template, VALUE)
