"""Admission: completes and checks an object before the store takes it.

``admit`` converts a written object to the stored one, or raises ``Invalid`` with all problems. Defaults are the CRD's
and Knative's (``defaults.py``). Rules are the CRD's CEL (``validations.py``), and rules in this module that CEL cannot
express. ``unknown`` lists fields to drop. ``kuberules`` checks Kubernetes' own kinds. A Secret's texts are encoded.
Changes of the user annotations of Knative's objects are rejected. Pure except for reading the CRDs once.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from serving.controller.revisions.defaults import fields_not_allowed
from serving.core.model.errors import Invalid, Problem, SettingsError
from serving.core.model.knative import (
    CREATOR_ANNOTATION,
    LAST_MODIFIER_ANNOTATION,
    QUEUE_PROXY_ANNOTATION,
    SERVING_GROUP,
    TCP_ANNOTATION,
    QueueProxyPlace,
)
from serving.core.model.objects import Object, annotations_of, name_of, namespace_of, nested, with_kubernetes_scheme
from serving.core.model.ports import CONTAINER_PORT
from serving.core.model.routepolicy import read_tcp_ports
from serving.core.model.scaledworkload import ScaledWorkloadSpec
from serving.core.scaling.policies.scalingpolicy import ScalingPolicySpec, check_scaling_policy
from serving.core.scaling.policies.triggertypes import REGISTRY
from serving.core.settings.annotations import read_annotations, read_rollout_check_of, read_rollout_duration
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.metadatakeys import check_keys
from serving.home.admission.defaults import fill_in_defaults, with_requests
from serving.home.admission.kubedefaults import with_kube_defaults
from serving.home.admission.kuberules.decoding import pod_type_problems, undecodable
from serving.home.admission.kuberules.formats import FORMATS, Json, forbidden, items_of
from serving.home.admission.kuberules.rules import kube_problems, spec_problems
from serving.home.schemas.crds import crds, resolved, schema_of
from serving.home.schemas.patch import same_json
from serving.home.schemas.schema import Schema, breaches, completed, unknown_fields
from serving.home.schemas.validations import ABSENT, rule_problems
from serving.home.store.requester import acting_manager, acting_user
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    CONFIGURATION,
    DEPLOYMENT,
    DOMAIN_MAPPING,
    POD,
    REVISION,
    ROUTE,
    SCALED_WORKLOAD,
    SCALING_POLICY,
    SECRET,
    SERVING_SERVICE,
    Kind,
)
from serving.net.cluster.port import Subresource
from serving.net.cluster.schedules import schedule_problems

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("grpc", "httpGet", "tcpSocket")

_ANNOTATIONS = (CREATOR_ANNOTATION, LAST_MODIFIER_ANNOTATION)
_ANNOTATED = {SERVING_SERVICE, CONFIGURATION, ROUTE, DOMAIN_MAPPING}
_DATA = frozenset({"binaryData", "data", "stringData"})
_OWN_PARTS = frozenset({"apiVersion", "kind", "metadata"})
# Location of the autoscaler's annotations by kind.
_TEMPLATES = {SERVING_SERVICE: ("spec", "template"), CONFIGURATION: ("spec", "template"), REVISION: ()}
# Kinds with a rollout duration.
_ROLLED_OUT = {SERVING_SERVICE, ROUTE}
_KNATIVES_WORDS = ("invalid key name ", "invalid value: ")
_SETTINGS = AutoscalerSettings()
_FEATURES = ControllerSettings()


def template_problems(spec: Any, where: str, features: ControllerSettings) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    """Yield the problems in the pod spec of a revision."""
    wrong = list(pod_type_problems(spec, where))
    if wrong or not isinstance(spec, dict):
        yield from wrong
        return
    first = [
        {**container, "name": container.get("name") or f"init-{index}"}
        for index, container in enumerate(items_of(spec, "initContainers"))
    ]
    written = items_of(spec, "containers")
    containers = [
        _with_ports(container, serves=len(written) == 1 or bool(container.get("ports"))) for container in written
    ]
    yield from spec_problems({**spec, "containers": containers, "initContainers": first}, where)
    yield from fields_not_allowed(spec, features, where)
    for index, container in enumerate(first):
        if items_of(container, "ports"):
            yield forbidden(f"{where}.initContainers[{index}].ports", "field not allowed in an init container")


def _with_ports(container: Json, *, serves: bool) -> Json:
    """The container as Knative writes it into a Deployment: a missing port or port 0 becomes the default port.

    This applies to container ports and probes. ``serves``: the container serves requests, so the scheme of its
    readiness probe is written as Kubernetes requires it.
    """
    deployed = {
        **container,
        "ports": [
            {**port, "containerPort": port.get("containerPort") or CONTAINER_PORT}
            for port in items_of(container, "ports")
        ],
    }
    for name in _PROBES:
        probe = container.get(name)
        if probe is not None:
            handlers = {key: probe[key] for key in _HANDLERS if probe.get(key) is not None}
            deployed[name] = {
                **probe,
                **{
                    key: {**handler, "port": handler.get("port") or CONTAINER_PORT} for key, handler in handlers.items()
                },
            }
    if serves and container.get("readinessProbe"):
        deployed["readinessProbe"] = with_kubernetes_scheme(deployed["readinessProbe"])
    return deployed


def own_problems(kind: Kind, whole: Object) -> Iterator[Problem]:
    """Yield the problems of an object that cannot be expressed in its schema and CEL rules."""
    if kind == SCALING_POLICY:
        yield from _policy_problems(whole.get("spec") or {})
    if kind == DOMAIN_MAPPING:
        yield from _namespace_problems(whole)
    if kind == SCALED_WORKLOAD:
        try:
            ScaledWorkloadSpec.from_object(whole)
        except SettingsError as error:
            for problem in error.problems:
                what = f"Invalid value: {problem.what}; expected {problem.expected}"
                yield Problem(where=problem.where, what=what, expected=problem.expected)


def _policy_problems(spec: object) -> Iterator[Problem]:
    """Yield the problems of a ScalingPolicy that CEL cannot express, such as unknown trigger types."""
    try:
        policy = msgspec.convert(spec, type=ScalingPolicySpec)
    except msgspec.ValidationError as error:
        yield Problem(where="spec", what=f"Invalid value: {error}", expected="a ScalingPolicy's spec")
        return
    yield from check_scaling_policy(policy, known_types=REGISTRY.keys())
    yield from schedule_problems(policy)


def _namespace_problems(mapping: Object) -> Iterator[Problem]:
    own, namespace = namespace_of(mapping), nested(mapping, "spec", "ref", "namespace")
    if namespace and own and namespace != own:
        what = f'Invalid value: mismatched namespaces: parent namespace: "{own}" does not match ref: "{namespace}"'
        yield Problem(where="spec.ref.namespace", what=what, expected=f"{own}, or nothing")


def _is_annotated(kind: Kind, whole: Object) -> bool:
    return kind in _ANNOTATED and not nested(whole, "metadata", "ownerReferences")


def with_user_info(kind: Kind, new: Object, old: Object | None, *, user: str) -> Object:
    """Set the annotations creator and lastModifier: both on a new object, lastModifier when the spec changes.

    ``user`` "" is the system, which sets neither. If a client omits an annotation, its value is kept, so that a user
    can apply a complete manifest again; Knative rejects such a write.
    """
    if not _is_annotated(kind, new):
        return new
    annotations = annotations_of(new)
    before = annotations_of(old)
    stamped = {key: before[key] for key in _ANNOTATIONS if key in before and key not in annotations}
    if user and old is None:
        stamped |= dict.fromkeys(_ANNOTATIONS, user)
    elif user and old is not None and not same_json(new.get("spec"), old.get("spec")):
        stamped[LAST_MODIFIER_ANNOTATION] = user
    if annotations.items() >= stamped.items():
        return new
    return {**new, "metadata": {**new["metadata"], "annotations": annotations | stamped}}


def user_info_problems(kind: Kind, new: Object, old: Object | None) -> Iterator[Problem]:
    """Yield a problem for each user annotation that a client changed. A change of the spec may change lastModifier."""
    if old is None or not _is_annotated(kind, new):
        return
    after, before = annotations_of(new), annotations_of(old)
    if after.get(CREATOR_ANNOTATION) != before.get(CREATOR_ANNOTATION):
        yield _immutable(CREATOR_ANNOTATION, before)
    is_same_spec = same_json(new.get("spec"), old.get("spec"))
    if is_same_spec and after.get(LAST_MODIFIER_ANNOTATION) != before.get(LAST_MODIFIER_ANNOTATION):
        yield _immutable(LAST_MODIFIER_ANNOTATION, before)


def _immutable(annotation: str, before: dict[str, str]) -> Problem:
    where = f"metadata.annotations[{annotation}]"
    value = before.get(annotation, "no value")
    return Problem(where=where, what="Invalid value: annotation value is immutable", expected=value)


def admit(  # noqa: PLR0913 - settings
    kind: Kind,
    new: Object,
    old: Object | None = None,
    *,
    subresource: Subresource | None = None,
    scaling: AutoscalerSettings = _SETTINGS,
    features: ControllerSettings = _FEATURES,
    is_one_machine: bool = False,
) -> Object:
    """Complete and check an object; return the object to store. ``old`` is None for a new object. Raises ``Invalid``.

    Annotations are validated against ``scaling``; ``features`` are the feature flags. With ``is_one_machine``, objects
    of Kubernetes' own kinds are checked too; in a cluster the API server has checked them.
    """
    crd = crds().get(kind)
    if crd is None:
        if is_one_machine and subresource is None and _is_checked(kind, new, old or {}):
            problems = undecodable(kind, new) or list(kube_problems(kind, new))
            if problems:
                raise _invalid(kind, name_of(new), problems)
        if is_one_machine and subresource is None and acting_manager():
            new = with_kube_defaults(kind, new, old)
        if kind == POD:
            return with_requests(new)
        if kind in {CONFIG_MAP, SECRET}:
            new = _without_null_data(new)
        return _with_encoded_data(new) if kind == SECRET and "stringData" in new else new
    # Unchanged parts were completed and checked when they were written.
    same = frozenset(key for key, value in new.items() if old is not None and value is old.get(key))
    whole = _completed(kind, new, same, old=old or {})
    if subresource is None:
        whole = with_user_info(kind, whole, old, user=acting_user())
    parts = [key for key in whole if key not in _OWN_PARTS and key not in same]
    properties = crd.schema.get("properties", {})
    before = old or {}
    problems = [
        breach for key in parts for breach in breaches(properties.get(key, {}), whole[key], key, old=before.get(key))
    ]
    if not problems and subresource is None:
        problems = _rule_problems(kind, whole, old, scaling=scaling, features=features if is_one_machine else None)
    if problems:
        raise _invalid(kind, name_of(whole), problems)
    return whole


def _is_checked(kind: Kind, new: Object, old: Object) -> bool:
    """Whether a write must be checked: it changes something other than metadata and status.

    Writes of the system itself are checked only for pods and Deployments.
    """
    is_changed = any(value is not old.get(key) for key, value in new.items() if key not in {"metadata", "status"})
    return is_changed and (kind in {POD, DEPLOYMENT} or bool(acting_manager()))


def _rule_problems(
    kind: Kind, whole: Object, old: Object | None, *, scaling: AutoscalerSettings, features: ControllerSettings | None
) -> list[Problem]:
    """The problems of an object that matches its schema: at most one per field."""
    problems = [
        *rule_problems(crds()[kind].rules, whole, ABSENT if old is None else old),
        *own_problems(kind, whole),
        *user_info_problems(kind, whole, old),
    ]
    if features is not None and kind in _TEMPLATES and not problems:
        problems += template_problems(*_pod_spec(kind, whole), features)
    by_place = {problem.where: problem for problem in reversed(problems)}
    first = (problem for problem in problems if by_place[problem.where] is problem)
    own = [*first, *_key_problems(kind, whole, old), *_annotation_problems(kind, whole, scaling)]
    return [*own, *_template_name_problems(kind, whole)]


def _key_problems(kind: Kind, whole: Object, old: Object | None) -> Sequence[Problem]:
    """The labels and annotations without effect that a write adds.

    An object with an owner is not checked, because it copies the keys of its owner.
    """
    return () if nested(whole, "metadata", "ownerReferences") else check_keys(kind.name, whole, old).problems


def _invalid(kind: Kind, name: str, problems: Sequence[Problem]) -> Invalid:
    title = f"{kind.name}.{kind.group}" if kind.group else kind.name
    texts = list(dict.fromkeys(_text_of(problem) for problem in problems))
    reasons = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return Invalid(f'{title} "{name}" is invalid: {reasons}', problems)


def _text_of(problem: Problem) -> str:
    """Format one problem as Knative words it, where clients depend on the wording."""
    if problem.what.startswith(_KNATIVES_WORDS):
        return problem.what
    prefix, suffix = 'Invalid value: "', f'": {problem.expected}'
    is_name = problem.where.endswith("spec.serviceAccountName") and problem.what.startswith(prefix)
    if is_name and problem.what.endswith(suffix):
        value = problem.what.removeprefix(prefix).removesuffix(suffix)
        return f"invalid value: {value}: {problem.where}\n{problem.expected}"
    return f"{problem.where}: {problem.what}"


def unknown(kind: Kind, body: Object) -> list[str]:
    """The paths of unknown fields, in the order of the object."""
    return [*unknown_fields(schema_of(kind), body, resolve=resolved), *_unknown_of_init(kind, body)]


def _unknown_of_init(kind: Kind, whole: Object) -> Iterator[str]:
    spec, where = _pod_spec(kind, whole) if kind in _TEMPLATES else (None, "")
    if isinstance(spec, dict):
        schema: Schema = crds()[kind].schema
        for key in (*_TEMPLATES[kind], "spec", "containers"):
            schema = schema["properties"][key]
        yield from unknown_fields(schema, spec.get("initContainers"), f"{where}.initContainers")


def _pod_spec(kind: Kind, whole: Object) -> tuple[Any, str]:
    path = (*_TEMPLATES[kind], "spec")
    return nested(whole, *path), ".".join(path)


def annotation_warnings(kind: Kind, body: Object) -> list[str]:
    """The unknown labels and annotations in the groups of the autoscaler and of this project."""
    annotations = _annotations(kind, body)
    scaling = [str(problem) for problem in read_annotations(annotations, _SETTINGS).warnings] if annotations else []
    return [*scaling, *(check_keys(kind.name, body).warnings if kind.group == SERVING_GROUP else ())]


def _template_name_problems(kind: Kind, whole: Object) -> Iterator[Problem]:
    """Yield problems of annotation and label names in a template that would make every Revision invalid."""
    path = _TEMPLATES.get(kind)
    metadata = nested(whole, *path, "metadata") if path else None
    for field, what in (("annotations", "an annotation's name"), ("labels", "a label's name")):
        for key in (metadata or {}).get(field) or ():
            if not FORMATS["qualified"].fits(key.lower()):
                where = ".".join((*path, "metadata", field)) if path else field
                expected = "a name like example.com/name"
                yield Problem(where=where, what=f"Invalid value: {key!r}: not {what}", expected=expected)


def _annotation_problems(kind: Kind, body: Object, scaling: AutoscalerSettings) -> Iterator[Problem]:
    annotations = _annotations(kind, body)
    place = annotations.get(QUEUE_PROXY_ANNOTATION)
    if place is not None and place not in list(QueueProxyPlace):
        expected = " or ".join(QueueProxyPlace)
        what = f"{place!r} is not valid; expected {expected}"
        yield Problem(where=f"annotation {QUEUE_PROXY_ANNOTATION}", what=what, expected=expected)
    for problem in read_annotations(annotations, scaling).problems if annotations else ():
        # A server's message has no field for the expected value.
        yield msgspec.structs.replace(problem, what=f"{problem.what}; expected {problem.expected}")
    if kind in _ROLLED_OUT:
        own = (body.get("metadata") or {}).get("annotations") or {}
        texts = {key: text for key, text in own.items() if isinstance(text, str)}
        ports = read_tcp_ports(str(own.get(TCP_ANNOTATION) or ""))
        if ports and place == QueueProxyPlace.IN_PROCESS:
            what = f"needs a queue-proxy beside the app, which annotation {QUEUE_PROXY_ANNOTATION}={place} does without"
            expected = "one of the two annotations"
            yield Problem(where=f"annotation {TCP_ANNOTATION}", what=f"{what}; expected {expected}", expected=expected)
        for setting in (read_rollout_duration(texts), read_rollout_check_of(texts), ports):
            if isinstance(setting, Problem):
                yield msgspec.structs.replace(setting, what=f"{setting.what}; expected {setting.expected}")


def _annotations(kind: Kind, body: Object) -> dict[str, str]:
    value: Any = body
    for key in (*_TEMPLATES.get(kind, ("",)), "metadata", "annotations"):
        value = value.get(key) if isinstance(value, dict) else None
    return {key: text for key, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}


def _completed(kind: Kind, body: Object, same: frozenset[str], *, old: Object) -> Object:
    """The object with all defaults filled in.

    Fields named in ``same``, and parts that are the same Python objects as in ``old``, are complete already.
    """
    schema = crds()[kind].schema
    known = schema.get("properties", {})
    result = {key: value for key, value in body.items() if key in known and value is not None}
    done = _OWN_PARTS | same
    rest = {key: value for key, value in result.items() if key not in done}
    wanted = {key: property_schema for key, property_schema in known.items() if key not in done}
    result |= completed({"type": "object", "properties": wanted}, rest, old)
    spec = result.get("spec")
    if isinstance(spec, dict) and "spec" not in same:
        fill_in_defaults(kind, result, spec)
    return result


def _without_null_data(whole: Object) -> Object:
    """Store null values of ``data``, ``binaryData`` and ``stringData`` as empty texts, as Go decodes them."""
    nulls = {
        field: {key: "" if text is None else text for key, text in value.items()}
        for field, value in whole.items()
        if field in _DATA and isinstance(value, dict) and None in value.values()
    }
    return {**whole, **nulls} if nulls else whole


def _with_encoded_data(secret: Object) -> Object:
    """Move ``stringData`` into ``data``, encoded in base64. It replaces existing values."""
    texts = secret["stringData"] or {}
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        problem = Problem(where="stringData", what="Invalid value: not a map of texts", expected="texts by key")
        raise _invalid(SECRET, name_of(secret), [problem])
    data = {**(secret.get("data") or {})}
    data |= {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return {key: value for key, value in secret.items() if key != "stringData"} | {"data": data}
