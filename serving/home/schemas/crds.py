"""The custom resources as ``config/crd/*.yaml`` define them: schema, rules, printer columns, subresources.

Input: the YAML files, from the installed package or the checkout; output: a record for each kind. The names in them must
be those of ``kinds.py``; a file that does not match is an internal error and stops the start.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from serving.cluster.kinds import KINDS, Kind
from serving.home.schemas.schema import Schema
from serving.home.schemas.validations import RuleTree, rule_tree

# The one in C, where PyYAML has it: 3,000 lines take 15 ms with it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Column(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One printer column. Priority 0 is always shown, more only with ``-o wide``."""

    name: str
    type: str
    json_path: str
    priority: int = 0
    description: str = ""
    format: str = ""


class Crd(msgspec.Struct, frozen=True, kw_only=True):
    """What the server needs to know of a custom resource."""

    kind: Kind
    schema: Schema
    rules: RuleTree | None
    columns: tuple[Column, ...]
    has_status: bool


def crd_folder() -> Path:
    """Where the definitions are: inside an installed package, or in the checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "_config" / "crd"
    return installed if installed.is_dir() else package.parent / "config" / "crd"


@functools.cache
def crds() -> Mapping[Kind, Crd]:
    """All custom resources, by kind. The files are read once."""
    found = [parse_crd(path.read_text(encoding="utf-8")) for path in sorted(crd_folder().glob("*.yaml"))]
    return {crd.kind: crd for crd in found}


def parse_crd(text: str) -> Crd:
    """One CustomResourceDefinition. Raises ``KeyError`` or ``ValueError`` if it does not fit ``kinds.py``."""
    spec: dict[str, Any] = yaml.load(text, Loader=_LOADER)["spec"]  # noqa: S506 - both loaders are safe
    (version,) = spec["versions"]
    named = (spec["group"], version["name"], spec["names"]["kind"], spec["names"]["plural"])
    (kind,) = (kind for kind in KINDS if (kind.group, kind.version, kind.name, kind.plural) == named)
    return Crd(
        kind=kind,
        schema=version["schema"]["openAPIV3Schema"],
        rules=rule_tree(version["schema"]["openAPIV3Schema"]),
        columns=tuple(msgspec.convert(version.get("additionalPrinterColumns", ()), type=tuple[Column, ...])),
        has_status="status" in version.get("subresources", {}),
    )
