"""The schema of each custom resource has exactly the fields that the code reads."""

import ast
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kubernetes.client import models

from serving.activator.queueing import revisions
from serving.activator.routing import hostclaims
from serving.core.model.knative import (
    ConfigurationFields,
    DomainClaimFields,
    DomainMappingFields,
    RevisionFields,
    RouteFields,
    ServiceFields,
)
from serving.core.model.scaledworkload import ScaledWorkloadSpec
from serving.core.scaling.policies.scalingpolicy import ScalingPolicySpec
from serving.core.settings.knob import COUNT, DURATION, FLAG, TEXT, fields_of
from serving.core.settings.nodegroup import NodeGroupQuirks, NodeGroupSettings
from serving.core.settings.nodegroup_options import AwsOptions
from serving.home.schemas.crds import crds
from serving.net.cluster.kinds import (
    CLUSTER_DOMAIN_CLAIM,
    CONFIGURATION,
    DOMAIN_MAPPING,
    HTTP_SCALED_OBJECT,
    INTERCEPTOR_ROUTE,
    KEDA_SCALED_OBJECT,
    NODE_GROUP,
    POD_AUTOSCALER,
    REVISION,
    ROUTE,
    SCALED_WORKLOAD,
    SCALING_POLICY,
    SERVERLESS_SERVICE,
    SERVING_SERVICE,
    Kind,
)
from serving.nodes.nodegroup.groups import spec_keys
from tests.tidy.sources import named, parsed, product_files
from tests.unit.config.crdfields import (
    differences,
    fields_of_record,
    fields_of_schema,
    item_type,
    unknown_to_kubernetes,
)

SPECS: Mapping[Kind, object] = {
    SERVING_SERVICE: ServiceFields,
    CONFIGURATION: ConfigurationFields,
    REVISION: RevisionFields,
    ROUTE: RouteFields,
    DOMAIN_MAPPING: DomainMappingFields,
    CLUSTER_DOMAIN_CLAIM: DomainClaimFields,
    SCALING_POLICY: ScalingPolicySpec,
    SCALED_WORKLOAD: ScaledWorkloadSpec,
}
# Kinds whose spec has no record here, and the test that checks their fields.
ELSEWHERE = {
    NODE_GROUP: "test_node_group_schema_has_the_options_of_its_settings",
    POD_AUTOSCALER: "tests/unit/controller/test_written_fields.py: nothing reads a view",
    SERVERLESS_SERVICE: "tests/unit/controller/test_written_fields.py: nothing reads a view",
    **dict.fromkeys(
        (HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE, KEDA_SCALED_OBJECT),
        "tests/unit/controller/keda/test_conversion.py: every field acts or is named",
    ),
}
# Parts of a spec that are copied to pods unchanged; Kubernetes' type is their record.
PASSED: Mapping[str, Any] = {
    "spec.template.metadata": models.V1ObjectMeta,
    "spec.template.spec": models.V1PodSpec,
    "spec": models.V1PodSpec,
}
_TYPES = {COUNT: "integer", DURATION: "string", FLAG: "boolean", TEXT: "string"}

# Records of the activator with a part of the fields.
_PARTS = [
    (ROUTE, "spec", hostclaims._RouteSpec),
    (ROUTE, "status", hostclaims._RouteStatus),
    (REVISION, "spec", revisions._RevisionSpec),
    (REVISION, "status", revisions._RevisionStatus),
]
_KUBERNETES = [
    *("V1Deployment", "V1EndpointSlice", "V1LimitRange", "V1Namespace", "V1Node", "V1Pod", "V1PodDisruptionBudget"),
    *("V1ResourceQuota", "V1Service", "V2HorizontalPodAutoscaler"),
]
# Files that read fields of kinds defined by others.
_OF_OTHERS = {
    "serving/controller/keda/conversion.py": "KEDA's",
    "serving/home/apiserver/tables.py": "Kubernetes'",
    "serving/home/controllers/ingressrules.py": "Kubernetes' and the Gateway API's",
    "serving/tools/cli/services/convert.py": "Compose's",
    "serving/tools/cli/system/clusterdoctor.py": "Kubernetes' reviews of access",
    "serving/nodes/nodegroup/io/clouds/clusterapi.py": "Cluster API's",
    "serving/controller/routes/httproutes.py": "the Gateway API's",
    "serving/home/acme/issuer.py": "cert-manager's",
    "serving/tools/cli/system/issuance.py": "cert-manager's",
}


def schema_of(kind: Kind, *path: str) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = crds()[kind].schema
    for name in path:
        schema = schema["properties"][name]
    return schema


def passed_in(kind: Kind) -> dict[str, tuple[Mapping[str, Any], Any]]:
    """The parts of a kind's spec that are copied to pods, with their types."""
    templated = {SERVING_SERVICE, CONFIGURATION}
    paths = (
        []
        if kind not in {*templated, REVISION}
        else [text for text in PASSED if ("template" in text) == (kind in templated)]
    )
    return {path: (schema_of(kind, *path.split(".")), PASSED[path]) for path in paths}


def own_fields(kind: Kind) -> dict[str, str]:
    """The fields of a kind's spec without pod fields."""
    passed = [
        f"{path}.{name}" for path, (_, model) in passed_in(kind).items() for name in model.attribute_map.values()
    ] + [path for path, (_, model) in passed_in(kind).items() if model is models.V1ObjectMeta]
    return {
        path: kind_of
        for path, kind_of in fields_of_schema(schema_of(kind, "spec"), "spec").items()
        if not any(path == text or path.startswith((f"{text}.", f"{text}[")) for text in passed)
    }


def test_each_kind_has_a_record_of_its_spec() -> None:
    assert {*SPECS, *ELSEWHERE} == set(crds())


@pytest.mark.parametrize("kind", SPECS, ids=lambda kind: kind.resource)
def test_spec_schema_has_the_fields_of_its_record(kind: Kind) -> None:
    record = SPECS[kind]
    fields = fields_of_record(record, "spec")
    name = getattr(record, "__name__", "")
    assert differences(own_fields(kind), fields, record_name=name, exceptions={}) == []


@pytest.mark.parametrize("kind", [SERVING_SERVICE, CONFIGURATION, REVISION], ids=lambda kind: kind.resource)
def test_pod_fields_of_specs_exist_in_kubernetes(kind: Kind) -> None:
    own = set(fields_of_record(SPECS[kind], "spec"))
    unknown = [
        text for path, (schema, model) in passed_in(kind).items() for text in unknown_to_kubernetes(schema, model, path)
    ]
    assert [text for text in unknown if text not in own] == []


def camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def test_node_group_schema_has_the_options_of_its_settings() -> None:
    keys = spec_keys()
    options = {field.knob.key: field.knob.unit for field in fields_of(NodeGroupSettings) if len(field.path) == 1}
    record = {
        "spec": "object",
        **{f"spec.{keys[key]}": _TYPES[unit] for key, unit in options.items() if key in keys},
        **fields_of_record(AwsOptions, "spec.aws", names=camel),
        **fields_of_record(NodeGroupQuirks, "spec.quirks", names=camel),
    }
    fields = fields_of_schema(schema_of(NODE_GROUP, "spec"), "spec")
    assert differences(fields, record, record_name="NodeGroupSettings", exceptions={}) == []


@pytest.mark.parametrize(("kind", "part", "record"), _PARTS)
def test_partial_records_have_only_fields_of_the_schema(kind: Kind, part: str, record: type) -> None:
    schema, fields = fields_of_schema(schema_of(kind, part), part), fields_of_record(record, part)
    missing = differences(schema, fields, record_name=record.__name__, exceptions=dict.fromkeys(schema, ""))
    # A number accepts integers.
    assert [text for text in missing if "integer in config/crd, number in" not in text] == []


def literals_of(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def records_below(record: Any) -> set[Any]:  # noqa: ANN401 - a type
    """A TypedDict and the TypedDicts in its fields."""
    below = {part for hint in record.__annotations__.values() for part in (hint, *getattr(hint, "__args__", ()))}
    results = {record}
    for type_ in below:
        if isinstance(type_, type) and hasattr(type_, "__optional_keys__"):
            results |= records_below(type_)
    return results


def test_code_names_every_field_of_a_record() -> None:
    files = [path for path in product_files() if named(path) != "serving/core/model/knative.py"]
    known = {text for path in files for text in literals_of(parsed(path.read_text()))}
    records = {
        record_type
        for record in SPECS.values()
        if record not in (ScalingPolicySpec, ScaledWorkloadSpec)
        for record_type in records_below(record)
    }
    unread = {
        f"{record.__name__}.{field}" for record in records for field in record.__optional_keys__ if field not in known
    }
    assert unread == set()


def paths_read(tree: ast.AST) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Paths below spec and status in calls of ``nested``, with line numbers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "nested":
            steps = itertools.takewhile(lambda argument: isinstance(argument, ast.Constant), node.args[1:])
            path = tuple(
                step
                for each_step in steps
                if isinstance(each_step, ast.Constant) and isinstance(step := each_step.value, str)
            )
            if path[:1] in {("spec",), ("status",)}:
                yield node.lineno, path


@functools.cache
def known_paths() -> Mapping[str, str]:
    """The types of all fields of all kinds by path, without list markers."""
    result = {path: kind for crd in crds().values() for path, kind in fields_of_schema(crd.schema, "").items()}
    return {path.replace("[]", "").strip("."): kind for path, kind in result.items()}


def is_known(path: tuple[str, ...]) -> bool:
    steps = [".".join(path[: count + 1]) for count in range(len(path))]
    is_free = any(known_paths().get(step) == "open" or f"{step}.*" in known_paths() for step in steps[:-1])
    return steps[-1] in known_paths() or is_free or any(is_in_kubernetes(model, path) for model in _KUBERNETES)


def is_in_kubernetes(model: str, path: tuple[str, ...]) -> bool:
    for name in path:
        kind = getattr(models, item_type(model), None)
        if kind is None:
            return True
        attributes = {json_name: attribute for attribute, json_name in kind.attribute_map.items()}
        if name not in attributes:
            return False
        model = kind.openapi_types[attributes[name]]
    return True


def test_code_reads_only_fields_of_a_schema() -> None:
    unknown = [
        f"{named(path)}:{line}: {'.'.join(steps)}: read here, but no schema has it"
        for path in product_files()
        if named(path) not in _OF_OTHERS
        for line, steps in paths_read(parsed(path.read_text()))
        if not is_known(steps)
    ]
    assert unknown == []
