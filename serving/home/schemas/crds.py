"""Schemas of all kinds: custom resources from ``config``, Kubernetes' own from bundled descriptions.

A custom resource's definition has its schema, rules, printer columns and subresources. Names in the files must be those
of ``kinds.py``; a mismatch is an internal error and stops the start.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from serving.home.schemas.schema import Schema
from serving.home.schemas.validations import RuleTree, rule_tree
from serving.net.cluster.kinds import KINDS, Kind

# The C loader, if PyYAML has it: 3,000 lines take 15 ms with it.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

OPEN_SCHEMA: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""Any object."""
_REF = "#/components/schemas/"
_METADATA = "meta.v1.ObjectMeta"


class Column(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A printer column. Priority 0 is always shown, higher ones only with ``-o wide``."""

    name: str
    type: str
    json_path: str
    priority: int = 0
    description: str = ""
    format: str = ""


class Crd(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a custom resource definition that the server needs."""

    kind: Kind
    schema: Schema
    rules: RuleTree | None
    columns: tuple[Column, ...]
    has_status: bool


def crd_folder() -> Path:
    """The folder of definitions: in the installed package or the checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "_config" / "crd"
    return installed if installed.is_dir() else package.parent / "config" / "crd"


@functools.cache
def crds() -> Mapping[Kind, Crd]:
    """All custom resources, by kind. The files are read once."""
    folders = (crd_folder(), crd_folder().parent / "components" / "keda-http" / "crd")
    paths = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
    parsed = [parse_crd(path.read_text(encoding="utf-8")) for path in paths]
    return {crd.kind: crd for crd in parsed}


def parse_crd(text: str) -> Crd:
    """Parse a CustomResourceDefinition. Raises ``KeyError`` or ``ValueError`` if it does not match ``kinds.py``."""
    spec: dict[str, Any] = yaml.load(text, Loader=YAML_LOADER)["spec"]  # noqa: S506 - both loaders are safe
    (version,) = spec["versions"]
    named = (spec["group"], version["name"], spec["names"]["kind"], spec["names"]["plural"])
    kind = next((kind for kind in KINDS if (kind.group, kind.version, kind.name, kind.plural) == named), None)
    if kind is None:
        raise ValueError(
            f"KINDS in serving/net/cluster/kinds.py has no {'/'.join(named[:3])} with the plural {named[3]}"
        )
    return Crd(
        kind=kind,
        schema=version["schema"]["openAPIV3Schema"],
        rules=rule_tree(version["schema"]["openAPIV3Schema"]),
        columns=tuple(msgspec.convert(version.get("additionalPrinterColumns", ()), type=tuple[Column, ...])),
        has_status="status" in version.get("subresources", {}),
    )


SCHEMAS_FILE = crd_folder().parent / "openapi" / "kubernetes.json"


_DESCRIPTIONS_FILE = SCHEMAS_FILE.with_name("descriptions.yaml")


@functools.cache
def builtin_schemas() -> dict[str, dict[str, Any]]:
    """The schemas of Kubernetes' own kinds and HTTPRoutes, by their short names, such as "core.v1.Pod". Read-only."""
    files = (SCHEMAS_FILE, SCHEMAS_FILE.with_name("gateway.json"))
    decoded = [msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, Any]]) for file in files]
    return {name: schema for schemas in decoded for name, schema in schemas.items()}


@functools.cache
def _descriptions() -> dict[str, dict[str, str]]:
    descriptions: dict[str, dict[str, str]] = yaml.safe_load(_DESCRIPTIONS_FILE.read_text(encoding="utf-8"))
    return descriptions


def described_schema(name: str) -> dict[str, Any]:
    """The schema of this name with descriptions, for clients."""
    schema, texts = builtin_schemas()[name], _descriptions().get(name, {})
    properties = {
        field: {"description": texts[field], **_inner(property_schema)} if field in texts else property_schema
        for field, property_schema in schema.get("properties", {}).items()
    }
    result = {**schema, **({"properties": properties} if properties else {})}
    return {"description": texts[""], **result} if "" in texts else result


def _inner(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its ``$ref`` moved into ``allOf``, so that clients also read a description beside it."""
    if "$ref" not in schema:
        return schema
    return {**{key: value for key, value in schema.items() if key != "$ref"}, "allOf": [{"$ref": schema["$ref"]}]}


def referred(schema: object) -> Iterator[str]:
    """The names of all schemas that a schema refers to directly."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_REF)
        for child in schema.values():
            yield from referred(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from referred(child)


def schema_name(kind: Kind) -> str:
    """The short name of a kind's schema: the first part of the group, the version and the name, as in "core.v1.Pod"."""
    return f"{(kind.group or 'core').partition('.')[0]}.{kind.version}.{kind.name}"


def resolved(schema: Schema) -> Schema:
    """The schema named by a reference; other schemas are returned unchanged."""
    reference = schema.get("$ref")
    return schema if reference is None else builtin_schemas()[reference.removeprefix(_REF)]


@functools.cache
def schema_of(kind: Kind) -> Schema:
    """The schema of a kind, including the schema of ``metadata``."""
    crd = crds().get(kind)
    schema = crd.schema if crd else builtin_schemas().get(schema_name(kind), OPEN_SCHEMA)
    metadata = {"$ref": _REF + _METADATA}
    return {**schema, "properties": {**schema.get("properties", {}), "metadata": metadata}}
