"""``python -m tests.unit.config.differences``: the tables of docs/kubernetes-reference.md about the fields of a pod.

The tables compare the definitions in ``config/crd``, the API's list of fields without effect, and the annotations'
record with all fields of Kubernetes, so that the page and the code agree.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubernetes.client import models

from serving.core.settings.annotations import GROUP, annotation_fields
from serving.core.settings.daemons import DAEMONS
from serving.core.settings.knob import with_group
from serving.core.settings.render import field_meaning
from serving.home.apiserver.effects import effectless
from serving.home.schemas.crds import crds
from serving.net.cluster.kinds import REVISION

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kubernetes-reference.md"
BEGIN, END = "<!-- made by tests/unit/config/differences.py -->", "<!-- end -->"
_SPEC: Mapping[str, Any] = crds()[REVISION].schema["properties"]["spec"]
_FLAGGED = "rejected unless `kubernetes.podspec-volumes-hostpath` of `config-features` is enabled"


def tables() -> str:
    """Both tables: fields grouped by treatment, and annotations that override no setting."""
    rows: dict[tuple[str, str], list[str]] = {}
    for field, here, there in _fields():
        rows.setdefault((here, there), []).append(field)
    lines = ["| on one machine | on a cluster | fields |", "|---|---|---|"]
    lines += [f"| {here} | {there} | {', '.join(fields)} |" for (here, there), fields in rows.items()]
    lines += ["", "| annotation | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in _annotations()]
    lines.append(f"| any other `{GROUP}...` | ignored: no such annotation |")
    return "\n".join(lines)


def page_with_tables(page: str) -> str:
    """The page with regenerated tables."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}"


def _fields() -> Iterator[tuple[str, str, str]]:
    own = [name for name in _SPEC["properties"] if name not in set(models.V1PodSpec.attribute_map.values())]
    yield from ((f"`{name}`", "honoured", "honoured") for name in sorted(own))
    yield from _of_kubernetes("", models.V1PodSpec, _SPEC)
    yield from _of_kubernetes("containers[].", models.V1Container, _SPEC["properties"]["containers"]["items"])
    yield from _of_kubernetes("volumes[].", models.V1Volume, _SPEC["properties"]["volumes"]["items"])


def _of_kubernetes(prefix: str, model: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:  # noqa: ANN401 - a generated class
    known = [name for name in sorted(model.attribute_map.values()) if name in schema["properties"]]
    for name in known:
        if not prefix and name in _refused():
            yield f"`{prefix}{name}`", "rejected", "rejected"
        elif f"{prefix}{name}" == "volumes[].hostPath":
            yield f"`{prefix}{name}`", _FLAGGED, _FLAGGED
        else:
            reason = _without_effect(prefix, name)
            yield f"`{prefix}{name}`", f"ignored: {reason}" if reason else "honoured", "honoured"
    unknown = ", ".join(f"`{prefix}{name}`" for name in sorted(model.attribute_map.values()) if name not in known)
    if model is models.V1Volume:
        # Kubernetes has removed most kinds of volumes, and the supported kinds are listed above.
        unknown = "every other field of `volumes[]`"
    yield unknown, "rejected as unknown", "rejected as unknown"


def _refused() -> set[str]:
    """Pod fields that the CRD forbids."""
    forbidden = "FieldValueForbidden"
    return {
        name
        for name, schema in _SPEC["properties"].items()
        if forbidden in [rule.get("reason") for rule in schema.get("x-kubernetes-validations", ())]
    }


def _without_effect(prefix: str, name: str) -> str:
    """The API server's warning about a set field; "" if there is none."""
    part: dict[str, Any] = {name: "x"}
    if prefix:
        part = {prefix.removesuffix("[]."): [part]}
    effectlesses = effectless(REVISION, {"spec": part})
    return effectlesses[0].split("accepted without effect: ")[1] if effectlesses else ""


def _annotations() -> Iterator[tuple[str, str]]:
    settings = {
        with_group(field.knob.annotation) for daemon in DAEMONS for field in daemon.fields() if field.knob.annotation
    }
    for field in annotation_fields():
        if field.knob.key not in settings:
            yield field.knob.key, re.split(r"\.(?: |$)", field_meaning(field))[0]


def main() -> int:
    """Write the tables into the page."""
    PAGE.write_text(page_with_tables(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
