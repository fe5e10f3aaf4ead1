"""Renders the admission policies for annotations: ``config/admission/annotations.yaml``.

Input: the knobs of annotations; output: a ValidatingAdmissionPolicy that refuses what ``read_annotations`` reports,
with the same texts. CEL states the form, the range and the choices of each annotation, and the contradictions below. A
value that CEL cannot parse exactly, such as "1e300", is accepted here; the controller creates no revision from it.
"""

import json
from collections.abc import Iterator

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import (
    CLASS_ANNOTATION,
    CLUSTER_LOCAL,
    LOAD_ANNOTATION,
    METRIC_ANNOTATION,
    NETWORKING_GROUP,
    QUEUE_PROXY_ANNOTATION,
    ROLLOUT_DURATION_ANNOTATION,
    SERVING_GROUP,
    SLO_ANNOTATION,
    SYSTEM_KEYS,
    TARGET_ANNOTATION,
    VISIBILITY_LABEL,
    QueueProxyPlace,
    TargetMode,
)
from serving.core.model.loadmetric import METRIC_FORM, expected_metrics
from serving.core.settings.annotations import (
    GROUP,
    ROLLOUT_CHECK_KNOB,
    ROLLOUT_DURATION_KNOB,
    annotation_fields,
    known_annotations,
    spellings,
)
from serving.core.settings.autoscaler import HPA_CLASS, KPA_CLASS, AutoscalerSettings
from serving.core.settings.knob import Knob, Value
from serving.core.settings.metadatakeys import (
    ANNOTATIONS,
    LABELS,
    SCALING_WORDS,
    TEMPLATE_ANNOTATIONS,
    TEMPLATE_LABELS,
    VISIBILITY_WORDS,
    place_words,
    places_of_keys,
    plain_name,
)

CONFIG_MAP = "config-autoscaler"
_DEFAULTS = AutoscalerSettings()
_TEMPLATE = "serving-annotations"
_ROLLOUT = "serving-rollout-duration"
_KEYS = "serving-keys"
_HEAD = """# Refuses wrong scaling annotations when they are written, in the words of the controller. Made by `make config` from
# serving/core/settings/annotations.py; docs/kubernetes-reference.md says what stays to the controller.
"""
_POLICY = """apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
  labels:
    app.kubernetes.io/part-of: serving
spec:
  failurePolicy: Fail
{param_kind}  matchConstraints:
    resourceRules:
      - apiGroups: [{group}]
        apiVersions: ["*"]
        operations: [CREATE, UPDATE]
        resources: [{resources}]
  matchConditions:
    # What a write leaves as it was is not checked again.
    - name: changed
      expression: >-
        oldObject == null || {changed}
{conditions}  variables:
    - name: given
      expression: >-
        {given}
{variables}  validations:
    - expression: size(variables.problems) == 0
      message: an annotation is not right
      messageExpression: >-
        size(variables.problems) == 1 ? variables.problems[0] : "[" + variables.problems.join(", ") + "]"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
  labels:
    app.kubernetes.io/part-of: serving
spec:
  policyName: {name}
  validationActions: [Deny]
{param}"""
_PARAM_KIND = """  paramKind:
    apiVersion: v1
    kind: ConfigMap
"""
_PARAM = f"""  paramRef:
    name: {CONFIG_MAP}
    namespace: knative-serving
    parameterNotFoundAction: Allow
"""
_OWN = "(has({0}.metadata.annotations) ? {0}.metadata.annotations : {{}})".format
# Annotations of a template, or of a Revision.
_GIVEN = f"""request.kind.kind == "Revision" ? {_OWN("object")} :
        has(object.spec) && has(dyn(object).spec.template) && has(dyn(object).spec.template.metadata)
        && has(dyn(object).spec.template.metadata.annotations) ? dyn(object).spec.template.metadata.annotations : {{}}"""
_BY_A_USER = """    # What a controller derives has the keys of its owner.
    - name: is-written-by-a-user
      expression: "!has(object.metadata.ownerReferences)"
"""
_OF_TEMPLATE = (
    "has({0}.spec) && has(dyn({0}).spec.template) && has(dyn({0}).spec.template.metadata)\n"
    "        && has(dyn({0}).spec.template.metadata.{1}) ? dyn({0}).spec.template.metadata.{1} : {{}}"
).format
_OF_OBJECT = "has({0}.metadata.{1}) ? {0}.metadata.{1} : {{}}".format
# The CEL path of each map, by its variable name.
_MAPS = {
    "own_labels": (LABELS, _OF_OBJECT),
    "own_annotations": (ANNOTATIONS, _OF_OBJECT),
    "template_labels": (TEMPLATE_LABELS, _OF_TEMPLATE),
    "template_annotations": (TEMPLATE_ANNOTATIONS, _OF_TEMPLATE),
}
_GENERATION_CHANGED = "object.metadata.generation != oldObject.metadata.generation"


def render_policies() -> str:
    """The YAML of all admission policies: for template annotations, rollout durations, and misplaced keys."""
    return f"{_HEAD}{_template_policy()}---\n{_rollout_policy()}---\n{_keys_policy()}"


def _template_policy() -> str:
    variables = [("settings", "has(params.data) ? params.data : {}")]
    problems = []
    for field in annotation_fields():
        names = spellings(field.knob.key)
        name, value = f"variables.{field.path[-1]}", f"variables.{field.path[-1]}_text"
        variables.append((field.path[-1], _first(names)))
        variables.append((f"{field.path[-1]}_text", f'{name} == "" ? "" : variables.given[{name}].trim()'))
        if (valid := _valid(field.knob, value)) != "true":
            problems.append(
                _problem(f'{name} != "" && !({valid})', name, _is_not_right(name), expected=_expected(field.knob))
            )
    variables += [(name, text) for name, text in _clash_variables()]
    place = f"variables.given[{_text(QUEUE_PROXY_ANNOTATION)}]"
    places = list(map(str, QueueProxyPlace))
    problems.append(
        _problem(
            f"{_text(QUEUE_PROXY_ANNOTATION)} in variables.given && !({place} in {json.dumps(places)})",
            _text(QUEUE_PROXY_ANNOTATION),
            f'''"'" + {place} + "' is not valid"''',
            expected=_text(" or ".join(places)),
        )
    )
    problems += [_problem(*clash, expected=expected) for *clash, expected in _clashes()]
    resources = "configurations, revisions, services"
    # The autoscaler's own annotations on a Revision change with its decisions.
    others = sorted(name for name in known_annotations() if not name.startswith(GROUP))
    own, before = _OWN("object"), _OWN("oldObject")
    is_changed = f"!(one in {before} && {before}[one] == {own}[one])"
    changed = (
        f'(request.kind.kind != "Revision" ? {_GENERATION_CHANGED} : {own}\n'
        f"        .exists(one, (one.startsWith({_text(GROUP)}) || one in {json.dumps(others)})\n        && {is_changed}))"
    )
    return _policy(_TEMPLATE, (_GIVEN, changed), variables, problems=problems, resources=resources)


def _rollout_policy() -> str:
    knob = ROLLOUT_DURATION_KNOB
    value = "variables.given[variables.name].trim()"
    problem = _problem(
        f'variables.name != "" && !({_valid(knob, value)})',
        "variables.name",
        _is_not_right("variables.name"),
        expected=_expected(knob),
    )
    variables = [("name", _first(spellings(ROLLOUT_DURATION_ANNOTATION)))]
    check = ROLLOUT_CHECK_KNOB
    named = _text(check.key)
    is_given, written = f"{named} in variables.given", f"variables.given[{named}]"
    wrong = _problem(
        f"{is_given} && !({_valid(check, written)})",
        named,
        f"""\"'" + {written} + "' is not right\"""",
        expected=_expected(check),
    )
    alone = _problem(
        f'{is_given} && {_valid(check, written)} && variables.name == ""',
        named,
        _text("only a rollout in steps is checked"),
        expected=_text(f'{ROLLOUT_DURATION_ANNOTATION} beside it, such as "60s"'),
    )
    changed = f"{_OWN('object')} != {_OWN('oldObject')}"
    return _policy(
        _ROLLOUT,
        (_OWN("object"), changed),
        variables,
        problems=[problem, wrong, alone],
        resources="routes, services",
    )


def _keys_policy() -> str:
    """The policy for keys without effect: the rules of ``check_keys``, except for misspelt keys."""
    places = places_of_keys()
    names = {plain_name(key): key for key in sorted(places, reverse=True)}
    variables = [
        ("places", json.dumps(dict(sorted(places.items())))),
        ("names", json.dumps(dict(sorted(names.items())))),
        ("known", json.dumps(sorted({*places, *SYSTEM_KEYS}))),
        ("is_mapping", 'request.kind.kind == "DomainMapping"'),
    ]
    for name, (_, texts) in _MAPS.items():
        part = name.partition("_")[2]
        before = f"oldObject == null ? {{}} : {texts('oldObject', part)}"
        variables += [(name, texts("object", part)), (f"{name}_before", before)]
        new, old = f"variables.{name}", f"variables.{name}_before"
        variables.append((f"{name}_changed", f"{new}.filter(key, !(key in {old} && {old}[key] == {new}[key]))"))
    label = _text(VISIBILITY_LABEL)
    visibility = (
        f"!variables.is_mapping && {label} in variables.own_labels_changed"
        f" && variables.own_labels[{label}] != {_text(CLUSTER_LOCAL)} ?\n        ["
        f'"invalid value: " + variables.own_labels[{label}] + {_text(f": {LABELS}.{VISIBILITY_LABEL}: {VISIBILITY_WORDS}")}] : []'
    )
    wrong = [f"({visibility})"]
    for name, (place, _) in _MAPS.items():
        wrong += [f"variables.{name}_changed.filter({terms})" for terms in _wrong_keys(name, place)]
    variables.append(("wrong", "\n        + ".join(wrong)))
    return _policy(
        _KEYS,
        ("{}", "true"),
        variables,
        problems=['size(variables.wrong) == 0 ? "" : variables.wrong.join(", ")'],
        resources="configurations, domainmappings, routes, services",
        conditions=_BY_A_USER,
    )


def _wrong_keys(name: str, place: str) -> Iterator[str]:
    """CEL: conditions for keys that do not belong in one place, each with its message."""
    is_own = name.startswith("own_")
    scaling = f"key.startsWith({_text(GROUP)})"
    invalid = f"""'invalid key name "' + key + '": {place}: '"""
    if place == ANNOTATIONS:
        yield f"key, !variables.is_mapping && {scaling}).map(key, {invalid} + '{SCALING_WORDS}'"
    # Only networking layers read keys of a DomainMapping.
    networking = f"key.startsWith({_text(f'{NETWORKING_GROUP}/')}) && key != {_text(VISIBILITY_LABEL)}"
    misplaced = f"variables.places[key] != {_text(place)}"
    misplaced += f" || (variables.is_mapping && !({networking}))" if is_own else ""
    others = f"!({scaling} && !variables.is_mapping) && " if place == ANNOTATIONS else ""
    before, after = place_words("?").split("?")
    advice = f"'{before}' + variables.places[key] + '{after}'"
    yield f"key, {others}key in variables.places && ({misplaced})).map(key, {invalid} + {advice}"
    plain = "key.lowerAscii()" + "".join(f'.replace("{sign}", "")' for sign in "-_./")
    unknown = f"{others}!(key in variables.known) && {plain} in variables.names"
    yield f"key, {unknown}).map(key, {invalid} + 'did you mean ' + variables.names[{plain}] + '?'"


def _policy(
    name: str,
    terms: tuple[str, str],
    variables: list[tuple[str, str]],
    *,
    problems: list[str],
    resources: str,
    conditions: str = "",
) -> str:
    has_settings = "settings" in dict(variables)
    listed = ",\n".join(f"        {problem}" for problem in problems)
    blocks = [f"    - name: {name}\n      expression: >-\n        {text}\n" for name, text in variables]
    blocks.append(
        f'    - name: problems\n      expression: >-\n        [\n{listed}\n        ].filter(one, one != "")\n'
    )
    return _POLICY.format(
        name=name,
        group=SERVING_GROUP,
        resources=resources,
        given=terms[0],
        changed=terms[1],
        conditions=conditions,
        variables="".join(blocks),
        param_kind=_PARAM_KIND if has_settings else "",
        param=_PARAM if has_settings else "",
    )


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _first(names: tuple[str, ...]) -> str:
    """CEL: the name under which an annotation is set; "" if it is not set."""
    return "".join(f"{_text(name)} in variables.given ? {_text(name)} : " for name in names) + '""'


def _valid(knob: Knob, value: str) -> str:
    """CEL: whether a text is a valid value, or has a form that CEL cannot check."""
    unit = knob.unit
    if knob.choices:
        return f"{value} in {json.dumps(list(map(str, knob.choices)))}"
    if not unit.form:
        return "true"
    is_form = f"{value}.matches({_text(f'^({unit.form})$')})"
    ranges = " && ".join(_ranges(knob, unit.cel.format(value)))
    if not unit.cel or not ranges:
        return is_form
    also = "".join(f" || {unit.cel.format(value)} == {_bound(knob, bound)}" for bound in knob.also)
    return f"{is_form} && (!{value}.matches({_text(f'^({unit.exact})$')}) || ({ranges}){also})"


def _ranges(knob: Knob, value: str) -> Iterator[str]:
    if knob.low is not None:
        yield f"{value} >= {_bound(knob, knob.low)}"
    if knob.above is not None:
        yield f"{value} > {_bound(knob, knob.above)}"
    if knob.high is not None:
        yield f"{value} <= {_bound(knob, knob.high)}"
    if knob.whole:
        yield f'{value} == duration(string({value}.getSeconds()) + "s")'


def _bound(knob: Knob, bound: Value) -> str:
    return knob.unit.cel.format(_text(knob.unit.write(bound)))


def _expected(knob: Knob) -> str:
    expected = knob.describe()
    try:
        knob.read("?", plain=False)
    except InvalidValue as error:
        # Some units describe valid values better than the knob.
        expected = error.expected
    return _text(expected)


def _is_not_right(name: str) -> str:
    return f'''"'" + variables.given[{name}] + "' is not right"'''


def _problem(condition: str, name: str, what: str, *, expected: str) -> str:
    """CEL: the message of a problem; "" if the condition does not hold. All parameters are CEL."""
    return f'{condition} ? "annotation " + {name} + ": " + {what} + "; expected " + {expected} : ""'


def _clash_variables() -> Iterator[tuple[str, str]]:
    count = '{0}.matches("^[+-]?[0-9]{{1,9}}$") ? int({0}) : {1}'
    for name in ("min_scale", "max_scale"):
        yield f"{name}_count", count.format(f"variables.{name}_text", 0)
    for name in ("activation_scale", "initial_scale"):
        yield f"{name}_count", count.format(f"variables.{name}_text", -1)
    limit = 'variables.settings["max-scale-limit"]'
    yield "limit", f'"max-scale-limit" in variables.settings ? ({count.format(limit, 0)}) : {_DEFAULTS.max_scale_limit}'
    zero = "allow-zero-initial-scale"
    is_default = str(_DEFAULTS.allow_zero_initial_scale).lower()
    is_true = f'variables.settings["{zero}"].matches("^(?i:true)$")'
    yield "is_zero_allowed", f'"{zero}" in variables.settings ? {is_true} : {is_default}'
    setting = '"pod-autoscaler-class" in variables.settings ? variables.settings["pod-autoscaler-class"] : '
    yield (
        "class_used",
        f'variables.class_name != "" ? variables.class_name_text : {setting}{_text(_DEFAULTS.pod_autoscaler_class)}',
    )


def _clashes() -> Iterator[tuple[str, str, str, str]]:
    """CEL for the contradictions of ``annotations._clashes``: condition, annotation, message, expectation."""
    low, high = "variables.min_scale_count", "variables.max_scale_count"
    number = "string({})".format
    yield (
        f"{high} > 0 && {low} > {high}",
        _text(f"{GROUP}min-scale"),
        f'{number(low)} + " is above max-scale " + {number(high)}',
        f'"at most " + {number(high)}',
    )
    for name, value, other in (("max-scale", high, "true"), ("min-scale", low, f"{high} <= variables.limit")):
        yield (
            f"variables.limit > 0 && {value} > variables.limit && {other}",
            _text(f"{GROUP}{name}"),
            f'{number(value)} + " is above max-scale-limit " + string(variables.limit)',
            f'"at most " + {number("variables.limit")}',
        )
    activation = "variables.activation_scale_count"
    yield (
        f"{activation} >= 2 && ({activation} < {low} || ({high} > 0 && {activation} > {high}))",
        _text(f"{GROUP}activation-scale"),
        f'{number(activation)} + " is outside min-scale and max-scale"',
        f'"from " + ({low} > 2 ? {number(low)} : "2") + ({high} > 0 ? " to " + {number(high)} : "")',
    )
    yield (
        "variables.initial_scale_count == 0 && !variables.is_zero_allowed",
        _text(f"{GROUP}initial-scale"),
        '"0 while allow-zero-initial-scale is false"',
        _text("a whole number of at least 1"),
    )
    yield from _class_clashes()


def _class_clashes() -> Iterator[tuple[str, str, str, str]]:
    text = "variables.{}_text".format
    known = [KPA_CLASS, HPA_CLASS]
    yield (
        f'{text("class_name")}.endsWith(".knative.dev") && !({text("class_name")} in {json.dumps(known)})',
        _text(CLASS_ANNOTATION),
        f"""\"'" + {text("class_name")} + "' is not an autoscaler of Knative\"""",
        _text("one of " + ", ".join(known)),
    )
    scales = f"variables.class_used != {_text(HPA_CLASS)}"
    metric = text("metric")
    yield (
        f'variables.metric != "" && {scales} && !{metric}.matches({_text(f"^{METRIC_FORM}$")})',
        _text(METRIC_ANNOTATION),
        f"""\"'" + {metric} + "' is not right\"""",
        _text("one of " + expected_metrics()),
    )
    yield f'variables.metric != "" && {metric} == ""', _text(METRIC_ANNOTATION), '"empty"', _text("a metric's name")
    for where, name in ((LOAD_ANNOTATION, "load"), (SLO_ANNOTATION, "slo")):
        what = f'"only the class {KPA_CLASS} scales by it, not " + variables.class_used'
        yield (
            f'variables.{name} != "" && variables.class_used != {_text(KPA_CLASS)}',
            _text(where),
            what,
            _text(f"no {where}"),
        )
    beside = f'"{METRIC_ANNOTATION} stands beside it"'
    yield 'variables.load != "" && variables.metric != ""', _text(LOAD_ANNOTATION), beside, _text("one of the two")
    uses = json.dumps(["learnt", str(TargetMode.USE)])
    source = text("target_source")
    yield (
        f'variables.slo != "" && {source} in {uses}',
        _text(SLO_ANNOTATION),
        f'"{TARGET_ANNOTATION}: " + {source} + " stands beside it"',
        _text("one of the two"),
    )
    yield (
        f'{scales} && variables.load == "" && variables.target == "" && {metric}.startsWith("gauge:")',
        _text(METRIC_ANNOTATION),
        f'{metric} + " has no target"',
        f'"{LOAD_ANNOTATION}: " + {metric} + "=NUMBER, how much of it one pod takes"',
    )
