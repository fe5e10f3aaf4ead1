"""The page about KEDA's HTTP add-on names each field of the definitions."""

import re
from collections.abc import Iterator

import pytest
import yaml

from serving.core.model.objects import Object
from tests.tidy.sources import ROOT

# The parts of a named field.
_PARTS = {
    *("apiVersion", "body", "bodyFromConfigMap", "headers", "hosts", "key", "kind", "max", "metadata", "min", "name"),
    *("paths", "port", "portName", "response", "service", "statusCode", "targetValue", "timeoutSeconds", "type"),
    *("value", "window"),
}
_TITLE = "field of the ScaledObject"
_COLUMNS = {"httpscaledobject": "HTTPScaledObject", "interceptorroute": "InterceptorRoute", "scaledobject": _TITLE}


def names(schema: Object) -> Iterator[str]:
    """The names of all fields of a schema."""
    for name, field in (schema.get("properties") or {}).items():
        yield name
        yield from names(field.get("items", field))


def documented(page: str, column: str) -> set[str]:
    """The words in code spans of the column for a kind."""
    words: set[str] = set()
    titles: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        titles = (titles or cells) if cells else []
        for title, cell in zip(titles, cells, strict=True):
            is_shared = column == _TITLE and "in the ScaledObject" in cells and title == "HTTPScaledObject"
            if title == column or is_shared:
                words.update(word for span in re.findall("`([^`]+)`", cell) for word in re.findall(r"\w+", span))
    return words


@pytest.mark.parametrize("kind", _COLUMNS)
def test_keda_page_names_every_field(kind: str) -> None:
    definition = yaml.safe_load((ROOT / f"config/components/keda-http/crd/{kind}.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    page = (ROOT / "docs/from-keda.md").read_text()
    assert sorted({*names(spec)} - documented(page, _COLUMNS[kind]) - (_PARTS - spec["properties"].keys())) == []
