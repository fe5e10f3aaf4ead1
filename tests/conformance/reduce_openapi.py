"""Reduces the OpenAPI of Kubernetes to the part of the API server: ``python tests/conformance/reduce_openapi.py FOLDER``.

FOLDER is a checkout of Kubernetes. Writes two files below ``config/openapi``:

- ``kubernetes.json``, from ``api/openapi-spec/v3``: the schemas of its own kinds with their types, defaults and list
  keys. Descriptions stay out; ``descriptions.yaml`` has those of this project.
- ``protobuf.json``, from the ``types.go`` of k8s.io/api and k8s.io/apimachinery: the number of each field on the wire,
  and which fields are pointers.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.home.apiserver.protobuf import NUMBERS_FILE
from serving.home.schemas.crds import SCHEMAS_FILE, crds, schema_name
from serving.net.cluster.kinds import KINDS, UNUSED_KINDS, Kind

_REF = "#/components/schemas/"
_KEPT = (
    *("type", "format", "required", "default", "items", "properties", "additionalProperties", "$ref"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
    *("x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-unions"),
)
# Sections of a schema's name that no reader needs.
_PREFIXES = ("io.k8s.api.", "io.k8s.apimachinery.pkg.apis.", "io.k8s.apimachinery.pkg.")
# Bodies of requests that are no kinds of their own.
_BODIES = (
    *("authorization.v1.SelfSubjectAccessReview", "authorization.v1.SelfSubjectRulesReview"),
    *("autoscaling.v1.Scale", "meta.v1.DeleteOptions", "policy.v1.Eviction"),
)
_REVIEWS = "apis__authorization.k8s.io__v1_openapi.json"
_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(
    r"^\t(?:\w+[ \t]+)?(?P<type>[\w.*\[\]]+)[ \t]+`json:\"(?P<name>\w*)(?P<options>[^\"]*)\"[^`]*protobuf:\"\w+,(?P<number>\d+),",
    re.MULTILINE,
)


def short(name: str) -> str:
    """A schema's name without its prefix: "core.v1.Pod"."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def reduced(schema: dict[str, Any], *, seen: set[str]) -> dict[str, Any]:
    """A schema without descriptions; the names that it refers to are added to ``seen``."""
    result: dict[str, Any] = {}
    if "allOf" in schema:
        (schema,) = [
            {**{key: each_value for key, each_value in schema.items() if key != "allOf"}, **schema["allOf"][0]}
        ]
    if "oneOf" in schema:
        return {"x-kubernetes-int-or-string": True}
    for key in _KEPT:
        value = schema.get(key)
        if value is None or (key == "default" and value in ({}, "", [])):
            continue
        match key:
            case "$ref":
                seen.add(value.removeprefix(_REF))
                result[key] = _REF + short(value.removeprefix(_REF))
            case "items" | "additionalProperties":
                result[key] = reduced(value, seen=seen) if isinstance(value, dict) else value
            case "properties":
                result[key] = {name: reduced(each_value, seen=seen) for name, each_value in value.items()}
            case _:
                result[key] = value
    return result


def document(folder: Path, kind: Kind) -> Path:
    """The file that has a kind's schemas."""
    place = f"apis__{kind.group}__{kind.version}" if kind.group else f"api__{kind.version}"
    return folder / f"{place}_openapi.json"


def go_fields(source: str) -> dict[str, list[tuple[str, str, int]]]:
    """The fields of each struct of a ``types.go``: name in JSON ("" for those of an embedded struct), Go type, number."""
    return {
        struct[1]: [(match_["name"], match_["type"], int(match_["number"])) for match_ in _FIELD.finditer(struct[2])]
        for struct in _STRUCT.finditer(source)
    }


def go_structs(staging: Path) -> dict[str, list[tuple[str, str, int]]]:
    """All structs by their short names, such as "core.v1.Pod"."""
    sources = (*staging.glob("api/*/v*/types.go"), *staging.glob("apimachinery/pkg/apis/meta/v1/types.go"))
    return {
        f"{path.parent.parent.name}.{path.parent.name}.{name}": fields
        for path in sources
        for name, fields in go_fields(path.read_text(encoding="utf-8")).items()
    }


def numbered(
    name: str, structs: dict[str, list[tuple[str, str, int]]], *, before: tuple[int, ...] = ()
) -> Iterator[tuple[str, list[int], bool]]:
    """Each field of a struct with its numbers, those of the structs that embed it first, and whether it is a pointer."""
    for field, go_type, number in structs[name]:
        if field:
            yield field, [*before, number], go_type.startswith("*")
        else:
            yield from numbered(f"{name.rpartition('.')[0]}.{go_type}", structs, before=(*before, number))


def write_numbers(names: list[str], staging: Path) -> None:
    """Write the numbers of the fields of these schemas, a line each."""
    structs, lines = go_structs(staging), []
    for name in names:
        fields = list(numbered(name, structs)) if name in structs else []
        if fields:
            numbers = {field: number for field, number, _ in fields}
            pointers = [field for field, _, is_pointer in fields if is_pointer]
            result = {"numbers": numbers, **({"pointers": pointers} if pointers else {})}
            lines.append(f"{json.dumps(name)}:{json.dumps(result, separators=(',', ':'))}")
    NUMBERS_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(checkout: Path) -> None:
    """Write the files."""
    folder = checkout / "api" / "openapi-spec" / "v3"
    known: dict[str, Any] = {}
    for kind in KINDS:
        if kind not in crds() and document(folder, kind).exists():
            known |= json.loads(document(folder, kind).read_text())["components"]["schemas"]
    known |= json.loads((folder / _REVIEWS).read_text())["components"]["schemas"]
    by_short = {short(name): name for name in known}
    kinds = [schema_name(kind) for kind in KINDS if kind not in crds() and kind not in UNUSED_KINDS]
    waiting = {by_short[name] for name in (*kinds, *_BODIES) if name in by_short}
    result: dict[str, Any] = {}
    while waiting:
        name = waiting.pop()
        seen: set[str] = set()
        result[short(name)] = reduced(known[name], seen=seen)
        waiting |= {text for text in seen if short(text) not in result}
    lines = [
        f"{json.dumps(name)}:{json.dumps(result[name], separators=(',', ':'), sort_keys=True)}"
        for name in sorted(result)
    ]
    SCHEMAS_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    write_numbers(sorted(result), checkout / "staging" / "src" / "k8s.io")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
