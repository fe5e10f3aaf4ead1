"""Reduce Kubernetes' OpenAPI documents to what the API server needs: ``python tests/conformance/reduce_openapi.py FOLDER``.

FOLDER is ``api/openapi-spec/v3`` of a checkout of Kubernetes. Writes ``config/openapi/kubernetes.json``: the schemas of its
own kinds with their types, defaults and list keys. Descriptions stay out; ``config/openapi/descriptions.yaml`` has those of
this project.
"""

import json
import sys
from pathlib import Path
from typing import Any

from serving.cluster.builtin_schemas import SCHEMAS_FILE, schema_name
from serving.cluster.crds import crds
from serving.cluster.kinds import KINDS, Kind

_REF = "#/components/schemas/"
_KEPT = (
    *("type", "format", "required", "default", "items", "properties", "additionalProperties", "$ref"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"),
    *("x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-unions"),
)
# Sections of a schema's name that no reader needs.
_PREFIXES = ("io.k8s.api.", "io.k8s.apimachinery.pkg.apis.", "io.k8s.apimachinery.pkg.")


def short(name: str) -> str:
    """A schema's name without its prefix: "core.v1.Pod"."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def reduced(schema: dict[str, Any], *, seen: set[str]) -> dict[str, Any]:
    """A schema without descriptions; the names that it refers to are added to ``seen``."""
    result: dict[str, Any] = {}
    if "allOf" in schema:
        (schema,) = [{**{key: one for key, one in schema.items() if key != "allOf"}, **schema["allOf"][0]}]
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
                result[key] = {name: reduced(one, seen=seen) for name, one in value.items()}
            case _:
                result[key] = value
    return result


def document(folder: Path, kind: Kind) -> Path:
    """The file that has a kind's schemas."""
    place = f"apis__{kind.group}__{kind.version}" if kind.group else f"api__{kind.version}"
    return folder / f"{place}_openapi.json"


def main(folder: Path) -> None:
    """Write the file."""
    known: dict[str, Any] = {}
    for kind in KINDS:
        if kind not in crds() and document(folder, kind).exists():
            known |= json.loads(document(folder, kind).read_text())["components"]["schemas"]
    by_short = {short(name): name for name in known}
    waiting = {by_short[schema_name(kind)] for kind in KINDS if kind not in crds() and schema_name(kind) in by_short}
    found: dict[str, Any] = {}
    while waiting:
        name = waiting.pop()
        seen: set[str] = set()
        found[short(name)] = reduced(known[name], seen=seen)
        waiting |= {one for one in seen if short(one) not in found}
    lines = [
        f"{json.dumps(name)}:{json.dumps(found[name], separators=(',', ':'), sort_keys=True)}" for name in sorted(found)
    ]
    SCHEMAS_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
