"""The page about KEDA's HTTP add-on names each field of the definitions."""

import re
from collections.abc import Iterator

import pytest
import yaml

from serving.core.model.objects import Object
from tests.tidy.sources import ROOT

# The parts of a named field.
_PARTS = {"body", "key", "metadata", "response", "statusCode", "targetValue", "type", "value"}


def names(schema: Object) -> Iterator[str]:
    """The names of all fields of a schema."""
    for name, field in (schema.get("properties") or {}).items():
        yield name
        yield from names(field.get("items", field))


@pytest.mark.parametrize("kind", ["httpscaledobject", "interceptorroute", "scaledobject"])
def test_keda_page_names_every_field(kind: str) -> None:
    definition = yaml.safe_load((ROOT / f"config/components/keda-http/crd/{kind}.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    words = set(re.findall(r"\w+", (ROOT / "docs/from-keda.md").read_text()))
    assert sorted({*names(spec)} - words - _PARTS) == []
