from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.home.schemas.crds import crds, parse_crd
from serving.home.schemas.schema import breaches
from serving.net.cluster.kinds import CONFIGURATION, KINDS, REVISION, ROUTE, SERVING_SERVICE, Kind
from tests.conformance.record_definitions import DEFINITIONS

# KEDA's CRDs: some of their lists have no maxItems.
KEDAS = [kind for kind in KINDS if kind.group.endswith("keda.sh")]
OURS = [kind for kind in KINDS if kind.group.endswith(("knative.dev", "serving.dev"))]

IMMUTABLE = "self == oldSelf"


def test_every_own_and_keda_kind_has_a_crd() -> None:
    assert sorted(kind.resource for kind in crds()) == sorted(kind.resource for kind in [*OURS, *KEDAS])


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.stem)
def test_crd_short_names_and_categories_equal_the_kinds(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    kind = parse_crd(text).kind
    names = yaml.safe_load(text)["spec"]["names"]
    assert names.get("shortNames", []) == list(kind.short_names)
    assert names.get("categories", []) == list(kind.categories)


@pytest.mark.parametrize("kind", [*OURS, *KEDAS], ids=lambda kind: kind.resource)
def test_every_crd_has_a_status(kind: Kind) -> None:
    assert crds()[kind].has_status


def test_revision_has_serving_state_column() -> None:
    assert {column.name: column.json_path for column in crds()[REVISION].columns}["State"] == ".spec.servingState"


def test_service_columns_equal_knatives() -> None:
    names = [column.name for column in crds()[SERVING_SERVICE].columns]
    assert names == ["URL", "LatestCreated", "LatestReady", "Ready", "Reason"]


def test_services_and_configurations_have_the_same_template_schema() -> None:
    templates = [
        crds()[kind].schema["properties"]["spec"]["properties"]["template"] for kind in (SERVING_SERVICE, CONFIGURATION)
    ]
    assert templates[0] == templates[1]


def without_rules(schema: Mapping[str, Any], *rules: str) -> Any:  # noqa: ANN401 - JSON
    """A schema without these rules, at every depth."""
    if not isinstance(schema, dict):
        return schema
    result = {key: without_rules(value, *rules) for key, value in schema.items() if key != "x-kubernetes-validations"}
    remaining = [entry for entry in schema.get("x-kubernetes-validations", ()) if entry["rule"] not in rules]
    return result | ({"x-kubernetes-validations": remaining} if remaining else {})


def test_revision_has_the_fields_of_a_template() -> None:
    template = crds()[SERVING_SERVICE].schema["properties"]["spec"]["properties"]["template"]
    ours = dict(crds()[REVISION].schema["properties"]["spec"]["properties"])
    del ours["servingState"]
    assert without_rules(ours, IMMUTABLE) == template["properties"]["spec"]["properties"]


def test_all_revision_fields_except_serving_state_are_immutable() -> None:
    spec = crds()[REVISION].schema["properties"]["spec"]
    # Fields that are always rejected need not be immutable.
    refused = {"hostIPC", "hostNetwork", "hostPID"}
    results = {
        name
        for name, property_ in spec["properties"].items()
        if IMMUTABLE in [rule["rule"] for rule in property_.get("x-kubernetes-validations", ())]
    }
    assert results == set(spec["properties"]) - refused - {"servingState"}
    # A field without a default may also be added or removed, which only a rule of the whole spec detects.
    (presence,) = (rule for rule in spec["x-kubernetes-validations"] if "oldSelf" in rule["rule"])
    seen = {name for name in results if f"has(self.{name}) == has(oldSelf.{name})" in presence["rule"]}
    assert seen == {name for name in results if "default" not in spec["properties"][name]}


def test_services_and_routes_have_the_same_traffic_schema() -> None:
    service, route = (
        crds()[kind].schema["properties"]["spec"]["properties"]["traffic"] for kind in (SERVING_SERVICE, ROUTE)
    )
    named = "self == ''"
    assert without_rules(service["items"]["properties"], named) == without_rules(route["items"]["properties"], named)


def test_crd_of_an_unknown_kind_is_rejected() -> None:
    text = "spec: {group: x, names: {kind: K, plural: ks}, versions: [{name: v1, schema: {openAPIV3Schema: {}}}]}"
    with pytest.raises(ValueError, match=r"KINDS in .*kinds.py has no x/v1/K with the plural ks"):
        parse_crd(text)


def schemas_in(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A schema and all nested schemas, with their paths."""
    yield path, schema
    for key, child in schema.get("properties", {}).items():
        yield from schemas_in(child, f"{path}.{key}")
    if "items" in schema:
        yield from schemas_in(schema["items"], f"{path}[*]")


@pytest.mark.parametrize("kind", [*OURS, *KEDAS], ids=lambda kind: kind.resource)
def test_every_default_is_valid_in_its_schema(kind: Kind) -> None:
    # A kube-apiserver rejects a CRD with an invalid default.
    for path, schema in schemas_in(crds()[kind].schema):
        if "default" in schema:
            assert list(breaches(schema, schema["default"], path)) == []


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.resource)
def test_every_list_has_max_items(kind: Kind) -> None:
    # Without maxItems, a kube-apiserver estimates the cost of the list's rules as too high.
    unbound = [
        path
        for path, schema in schemas_in(crds()[kind].schema)
        if schema.get("type") == "array" and "maxItems" not in schema
    ]
    assert unbound == []
