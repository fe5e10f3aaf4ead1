"""What stands between a write and the store: defaults, the schema, the rules; and what the writer should be told.

``admit`` makes of an object as written the object as stored, or raises ``Invalid`` with everything that is wrong. Its
defaults are the CRD's and Knative's (pkg/apis/serving/v1, ``*_defaults.go``). ``unknown`` lists fields that would be
dropped. Kinds without a CRD, Kubernetes' own, pass as they are, but for
a Secret's texts. Pure but for reading the CRDs once.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from serving.cluster.crds import crds
from serving.cluster.kinds import CONFIGURATION, DOMAIN_MAPPING, REVISION, ROUTE, SECRET, SERVING_SERVICE, Kind
from serving.cluster.port import Object, Subresource
from serving.cluster.rules import rule_breaches
from serving.cluster.schema import breaches, completed, unknown_fields
from serving.model.errors import Invalid, Problem
from serving.settings.annotations import read_annotations, read_rollout_duration
from serving.settings.autoscaler import AutoscalerSettings

__all__ = ["admit", "annotation_warnings", "unknown"]

_CONTAINER = "user-container"
_PORT = 8080
_OWN_PARTS = frozenset({"apiVersion", "kind", "metadata"})
_METADATA = frozenset(
    {
        *("annotations", "clusterName", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp"),
        *("finalizers", "generateName", "generation", "labels", "managedFields", "name", "namespace"),
        *("ownerReferences", "resourceVersion", "selfLink", "uid"),
    }
)
# Where a kind's annotations for the autoscaler are.
_TEMPLATES = {SERVING_SERVICE: ("spec", "template"), CONFIGURATION: ("spec", "template"), REVISION: ()}
# Kinds that say how long a rollout lasts.
_ROLLED_OUT = {SERVING_SERVICE, ROUTE}
_SETTINGS = AutoscalerSettings()


def admit(
    kind: Kind,
    new: Object,
    old: Object | None = None,
    *,
    subresource: Subresource | None = None,
    scaling: AutoscalerSettings = _SETTINGS,
    is_one_machine: bool = False,
) -> Object:
    """The object as it is stored. ``old`` is the one before, None for a new one. Raises ``Invalid``.

    ``scaling`` is what annotations are held to; ``is_one_machine`` refuses what processes cannot do.
    """
    crd = crds().get(kind)
    if crd is None:
        return _with_encoded_data(new) if kind == SECRET and "stringData" in new else new
    # What a write has not touched was completed and checked when it was written.
    same = frozenset(key for key, value in new.items() if old is not None and value is old.get(key))
    whole = _completed(kind, new, same, old=old or {})
    parts = [key for key in whole if key not in _OWN_PARTS and key not in same]
    properties = crd.schema.get("properties", {})
    before = old or {}
    problems = [one for key in parts for one in breaches(properties.get(key, {}), whole[key], key, old=before.get(key))]
    if problems:
        raise _invalid(kind, whole, problems, texts=[f"{one.where}: {one.what}" for one in problems])
    if subresource is None:
        broken = [*rule_breaches(kind, whole, old), *(_beyond_processes(kind, whole) if is_one_machine else ())]
        annotations = list(_annotation_problems(kind, whole, scaling))
        if broken or annotations:
            # Knative puts what is wrong before where it is.
            texts = [*(f"{one.what}: {one.where}" for one in broken), *map(str, annotations)]
            raise _invalid(kind, whole, [*broken, *annotations], texts=texts)
    return whole


def _invalid(kind: Kind, whole: Object, problems: Sequence[Problem], *, texts: Sequence[str]) -> Invalid:
    name = whole.get("metadata", {}).get("name", "")
    title = f"{kind.name}.{kind.group}" if kind.group else kind.name
    return Invalid(f'{title} "{name}" is invalid: {"; ".join(texts)}', problems)


def unknown(kind: Kind, body: Object) -> list[str]:
    """The paths of fields that would be dropped, in the order of the object."""
    found = [f"metadata.{key}" for key in body.get("metadata") or {} if key not in _METADATA]
    crd = crds().get(kind)
    return found if crd is None else [*unknown_fields(crd.schema, body), *found]


def _beyond_processes(kind: Kind, whole: Object) -> Iterator[Problem]:
    """Containers that run before the others: left out, the app would miss what they were to do for it."""
    if kind not in _TEMPLATES:
        return
    path = (*_TEMPLATES[kind], "spec")
    found: Any = whole
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, dict) and found.get("initContainers"):
        where = ".".join((*path, "initContainers"))
        yield Problem(where=where, what="must not set the field(s)", expected="containers only, on one machine")


def annotation_warnings(kind: Kind, body: Object) -> list[str]:
    """Annotations in the autoscaler's group that have no effect because there is no such thing."""
    annotations = _annotations(kind, body)
    return [str(one) for one in read_annotations(annotations, _SETTINGS).warnings] if annotations else []


def _annotation_problems(kind: Kind, body: Object, scaling: AutoscalerSettings) -> Iterator[Problem]:
    annotations = _annotations(kind, body)
    yield from read_annotations(annotations, scaling).problems if annotations else ()
    if kind in _ROLLED_OUT:
        own = (body.get("metadata") or {}).get("annotations") or {}
        rollout = read_rollout_duration({key: text for key, text in own.items() if isinstance(text, str)})
        if isinstance(rollout, Problem):
            yield rollout


def _annotations(kind: Kind, body: Object) -> dict[str, str]:
    found: Any = body
    for key in (*_TEMPLATES.get(kind, ("",)), "metadata", "annotations"):
        found = found.get(key) if isinstance(found, dict) else None
    return {key: text for key, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def _completed(kind: Kind, body: Object, same: frozenset[str], *, old: Object) -> Object:
    """The object with all defaults; parts named in ``same`` have them already, and so has what is shared with ``old``."""
    schema = crds()[kind].schema
    known = schema.get("properties", {})
    result = {key: value for key, value in body.items() if key in known and value is not None}
    done = _OWN_PARTS | same
    rest = {key: value for key, value in result.items() if key not in done}
    wanted = {key: one for key, one in known.items() if key not in done}
    result |= completed({"type": "object", "properties": wanted}, rest, old)
    spec = result.get("spec")
    if isinstance(spec, dict) and "spec" not in same:
        if kind in {SERVING_SERVICE, CONFIGURATION}:
            _fill_pod(_below(_below(spec, "template"), "spec"))
        if kind == REVISION:
            _fill_pod(spec)
        if kind in {SERVING_SERVICE, ROUTE}:
            _fill_traffic(kind, spec)
        if kind == DOMAIN_MAPPING and not _below(spec, "ref").get("namespace") and _below(spec, "ref"):
            spec["ref"]["namespace"] = _below(result, "metadata").get("namespace") or "default"
    return result


def _with_encoded_data(secret: Object) -> Object:
    """``stringData`` is for writing only: its texts go to ``data`` in base64, and win there."""
    texts = secret["stringData"] or {}
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        problem = Problem(where="stringData", what="Invalid value: not a map of texts", expected="texts by key")
        raise _invalid(SECRET, secret, [problem], texts=[f"{problem.where}: {problem.what}"])
    data = {**(secret.get("data") or {})}
    data |= {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return {key: value for key, value in secret.items() if key != "stringData"} | {"data": data}


def _below(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _fill_pod(pod: dict[str, Any]) -> None:
    """Names of containers and the port of a single one, as Knative and its Deployments have them."""
    given = pod.get("containers")
    containers = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    taken = {one.get("name") for one in containers}
    spare = (name for number in range(len(containers) * 2) if (name := f"{_CONTAINER}-{number}") not in taken)
    for container in containers:
        if not container.get("name"):
            container["name"] = _CONTAINER if len(containers) == 1 else next(spare)
    if len(containers) == 1 and not containers[0].get("ports"):
        containers[0]["ports"] = [{"containerPort": _PORT, "name": "http1", "protocol": "TCP"}]


def _fill_traffic(kind: Kind, spec: dict[str, Any]) -> None:
    """All to the latest where a Service says nothing, and ``latestRevision`` where a target does not say it."""
    if kind == SERVING_SERVICE and spec.get("traffic") == []:
        spec["traffic"] = [{"latestRevision": True, "percent": 100}]
    targets = spec.get("traffic")
    for target in targets if isinstance(targets, list) else ():
        if isinstance(target, dict) and "latestRevision" not in target:
            target["latestRevision"] = not target.get("revisionName")
