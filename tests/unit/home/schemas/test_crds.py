from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.home.schemas.crds import crds, parse_crd
from serving.home.schemas.schema import breaches
from serving.net.cluster.kinds import CONFIGURATION, KINDS, REVISION, ROUTE, SERVING_SERVICE, Kind
from tests.conformance.record_definitions import DEFINITIONS

# KEDA's fields: some of its lists have no bound.
KEDAS = [kind for kind in KINDS if kind.group.endswith("keda.sh")]
OURS = [kind for kind in KINDS if kind.group.endswith(("knative.dev", "serving.dev"))]

IMMUTABLE = "self == oldSelf"


def test_every_kind_of_ours_is_defined() -> None:
    assert sorted(kind.resource for kind in crds()) == sorted(kind.resource for kind in [*OURS, *KEDAS])


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)
def test_names_are_those_of_the_kinds(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    kind = parse_crd(text).kind
    names = yaml.safe_load(text)["spec"]["names"]
    assert names.get("shortNames", []) == list(kind.short_names)
    assert names.get("categories", []) == list(kind.categories)


@pytest.mark.parametrize("kind", [*OURS, *KEDAS], ids=lambda kind: kind.resource)
def test_every_kind_of_ours_has_a_status(kind: Kind) -> None:
    assert crds()[kind].has_status


def test_a_revision_prints_its_state() -> None:
    assert {column.name: column.json_path for column in crds()[REVISION].columns}["State"] == ".spec.servingState"


def test_a_service_prints_what_knative_prints() -> None:
    names = [column.name for column in crds()[SERVING_SERVICE].columns]
    assert names == ["URL", "LatestCreated", "LatestReady", "Ready", "Reason"]


def test_services_and_configurations_have_the_same_template() -> None:
    templates = [
        crds()[kind].schema["properties"]["spec"]["properties"]["template"] for kind in (SERVING_SERVICE, CONFIGURATION)
    ]
    assert templates[0] == templates[1]


def without_rules(schema: Mapping[str, Any], *rules: str) -> Any:  # noqa: ANN401 - JSON
    """A schema without some of its rules, at every depth."""
    if not isinstance(schema, dict):
        return schema
    result = {key: without_rules(value, *rules) for key, value in schema.items() if key != "x-kubernetes-validations"}
    remaining = [entry for entry in schema.get("x-kubernetes-validations", ()) if entry["rule"] not in rules]
    return result | ({"x-kubernetes-validations": remaining} if remaining else {})


def test_a_revision_has_the_fields_of_a_template() -> None:
    template = crds()[SERVING_SERVICE].schema["properties"]["spec"]["properties"]["template"]
    ours = dict(crds()[REVISION].schema["properties"]["spec"]["properties"])
    del ours["servingState"]
    assert without_rules(ours, IMMUTABLE) == template["properties"]["spec"]["properties"]


def test_every_field_of_a_revision_but_its_state_is_immutable() -> None:
    spec = crds()[REVISION].schema["properties"]["spec"]
    # Fields that are always refused need not be kept.
    refused = {"hostIPC", "hostNetwork", "hostPID"}
    results = {
        name
        for name, property_ in spec["properties"].items()
        if IMMUTABLE in [rule["rule"] for rule in property_.get("x-kubernetes-validations", ())]
    }
    assert results == set(spec["properties"]) - refused - {"servingState"}
    # A field that has no default may also come and go, which only a rule on the whole sees.
    (presence,) = (rule for rule in spec["x-kubernetes-validations"] if "oldSelf" in rule["rule"])
    seen = {name for name in results if f"has(self.{name}) == has(oldSelf.{name})" in presence["rule"]}
    assert seen == {name for name in results if "default" not in spec["properties"][name]}


def test_services_and_routes_have_the_same_traffic() -> None:
    service, route = (
        crds()[kind].schema["properties"]["spec"]["properties"]["traffic"] for kind in (SERVING_SERVICE, ROUTE)
    )
    named = "self == ''"
    assert without_rules(service["items"]["properties"], named) == without_rules(route["items"]["properties"], named)


def test_a_definition_of_a_kind_that_we_do_not_have_is_refused() -> None:
    text = "spec: {group: x, names: {kind: K, plural: ks}, versions: [{name: v1, schema: {openAPIV3Schema: {}}}]}"
    with pytest.raises(ValueError, match=r"KINDS in .*kinds.py has no x/v1/K with the plural ks"):
        parse_crd(text)


def schemas_in(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A schema and all below it, each with its path."""
    yield path, schema
    for key, child in schema.get("properties", {}).items():
        yield from schemas_in(child, f"{path}.{key}")
    if "items" in schema:
        yield from schemas_in(schema["items"], f"{path}[*]")


@pytest.mark.parametrize("kind", [*OURS, *KEDAS], ids=lambda kind: kind.resource)
def test_every_default_fits_its_own_schema(kind: Kind) -> None:
    # A kube-apiserver refuses a definition with a default that does not.
    for path, schema in schemas_in(crds()[kind].schema):
        if "default" in schema:
            assert list(breaches(schema, schema["default"], path)) == []


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.resource)
def test_every_list_has_a_bound(kind: Kind) -> None:
    # Without one a kube-apiserver takes it for endless, and the rules on it for too dear.
    unbound = [
        path
        for path, schema in schemas_in(crds()[kind].schema)
        if schema.get("type") == "array" and "maxItems" not in schema
    ]
    assert unbound == []
