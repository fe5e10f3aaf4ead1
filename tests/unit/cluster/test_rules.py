from collections.abc import Iterator, Mapping
from typing import Any

import cel
import pytest

from serving.cluster.crds import crds
from serving.cluster.kinds import REVISION, SERVING_SERVICE, Kind
from serving.cluster.rules import REVISION_FIELDS, RULES, Rule, breaches_of, located, rule_breaches
from tests.unit.cluster.rule_cases import CASES, Case, Json, revision, service

_ids = [case[0] for case in CASES]
WITHOUT_CEL = {rule.name for rule in RULES if not rule.cel}


@pytest.mark.parametrize("case", CASES, ids=_ids)
def test_python_finds_the_rules_that_an_object_breaks(case: Case) -> None:
    _, kind, new, old, broken = case
    assert {rule.name for rule in RULES if kind in rule.kinds and list(breaches_of(rule, new, old))} == broken


@pytest.mark.parametrize("case", CASES, ids=_ids)
def test_cel_finds_the_same(case: Case) -> None:
    _, kind, new, old, broken = case
    said = {rule.name for rule in RULES if kind in rule.kinds and rule.cel and not cel_holds(rule, new, old)}
    assert said == {name for name in broken if name not in WITHOUT_CEL}


def test_every_rule_has_a_case_that_breaks_it_and_one_that_does_not() -> None:
    broken = {name for *_, names in CASES for name in names}
    assert broken == {rule.name for rule in RULES}


def cel_holds(rule: Rule, new: Json, old: Json | None) -> bool:
    """What a kube-apiserver would say: the rule at each place, with the place before where it asks for it."""
    if rule.on_change and old is None:
        return True
    before = dict(located(old, rule.at)) if rule.on_change else {}
    for path, value in located(new, rule.at):
        if rule.on_change and path not in before:
            continue
        context = cel.Context()
        # Kubernetes' own addition to CEL's lists.
        context.add_function("sum", sum)
        context.add_variable("self", value)
        if rule.on_change:
            context.add_variable("oldSelf", before[path])
        if cel.evaluate(rule.cel, context) is not True:
            return False
    return True


@pytest.mark.parametrize("kind", list(crds()), ids=lambda kind: kind.resource)
def test_the_crd_has_the_rules_of_this_table_and_no_others(kind: Kind) -> None:
    ours = sorted((rule.at, rule.cel, rule.message) for rule in RULES if kind in rule.kinds and rule.cel)
    assert sorted(rules_in(crds()[kind].schema, "")) == ours


def rules_in(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """All CEL rules in a schema with the path to each."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule["rule"], rule["message"]
    for key, child in schema.get("properties", {}).items():
        yield from rules_in(child, f"{path}.{key}" if path else key)
    if "items" in schema:
        yield from rules_in(schema["items"], f"{path}[*]")


def test_a_revision_keeps_every_field_but_its_state() -> None:
    fields = set(crds()[REVISION].schema["properties"]["spec"]["properties"])
    # What is always refused need not be kept.
    refused = {"hostIPC", "hostNetwork", "hostPID"}
    assert fields - refused - {"servingState"} == set(REVISION_FIELDS)


def said(new: Json, kind: Kind = SERVING_SERVICE, old: Json | None = None) -> list[str]:
    return [f"{problem.what}: {problem.where}" for problem in rule_breaches(kind, new, old)]


def test_no_container_is_said_as_knative_says_it() -> None:
    assert said(service(pod={"containers": []})) == ["missing field(s): spec.template.spec.containers"]


def test_a_wrong_sum_is_said_as_knative_says_it() -> None:
    assert said(service(traffic=[{"percent": 90}])) == ["Traffic targets sum to 90, want 100: spec.traffic"]


def test_a_tag_that_stands_twice_is_said_with_both_places() -> None:
    traffic = [{"percent": 100, "tag": "a"}, {"revisionName": "x", "tag": "a"}]
    assert said(service(traffic=traffic)) == ['Multiple definitions for "a": spec.traffic[0].tag, spec.traffic[1].tag']


def test_too_much_concurrency_is_said_as_knative_says_it() -> None:
    expected = ["expected 0 <= 1001 <= 1000: spec.template.spec.containerConcurrency"]
    assert said(service(pod={"containerConcurrency": 1001})) == expected


def test_a_refused_field_is_said_as_knative_says_it() -> None:
    assert said(service(pod={"hostPID": True})) == ["must not set the field(s): spec.template.spec.hostPID"]


def test_two_handlers_are_said_with_both_places() -> None:
    probe: Json = {"httpGet": {}, "exec": {}}
    pod = {"containers": [{"image": "x", "readinessProbe": probe}]}
    place = "spec.template.spec.containers[0].readinessProbe"
    assert said(service(pod=pod)) == [f"expected exactly one, got both: {place}.exec, {place}.httpGet"]


def test_a_changed_revision_names_its_fields() -> None:
    new = revision(timeoutSeconds=1, containers=[{"image": "z"}])
    assert said(new, REVISION, revision()) == ["Immutable fields changed (-old +new): containers, timeoutSeconds: spec"]


def test_all_breaches_are_told_at_once() -> None:
    pod = {"containers": [{"image": ""}, {"image": "", "ports": [{"containerPort": 8012}]}]}
    assert len(said(service(name="A", pod=pod, traffic=[{"percent": 1}]))) == 5


def test_a_path_names_every_item_of_a_list() -> None:
    assert located({"a": [{"b": 1}, {"c": 2}, {"b": 3}]}, "a[*].b") == [("a[0].b", 1), ("a[2].b", 3)]


def test_a_path_through_something_else_names_nothing() -> None:
    assert located({"a": 1}, "a.b[*]") == []
