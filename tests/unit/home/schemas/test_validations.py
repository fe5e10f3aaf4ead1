from typing import Any

import pytest

from serving.core.model.errors import Invalid
from serving.home.admission.admission import admit
from serving.home.schemas import validations
from serving.home.schemas.crds import crds
from serving.home.schemas.validations import ABSENT, CelRule, RuleTree, rule_problems, rule_tree
from serving.net.cluster.kinds import REVISION, SERVING_SERVICE
from tests.unit.home.schemas.rule_cases import CASES, Case, Json

# JSON values have any type.
# ruff: noqa: ANN401

CONTAINER = {"image": "gcr.io/x/hello", "name": "user-container"}
REVISION_OBJECT = {
    "metadata": {"name": "hello-00001"},
    "spec": {"containers": [CONTAINER], "servingState": "Active", "timeoutSeconds": 300},
}


def responses(kind: Any, new: Json, old: Json | None) -> list[str]:
    """Admission's messages about an object, formatted as a kube-apiserver's causes."""
    try:
        admit(kind, new, None if old is None else admit(kind, old))
    except Invalid as error:
        return [f"{problem.where}: {problem.what}" for problem in error.problems]
    return []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_admission_messages_equal_kube_apiservers(case: Case) -> None:
    assert responses(case.kind, case.object, case.before) == case.answers


def rules_of(tree: RuleTree | None) -> list[CelRule]:
    if tree is None:
        return []
    below = [*tree.properties.values(), tree.items, tree.values]
    return [*tree.rules, *(rule for child in below for rule in rules_of(child))]


@pytest.mark.parametrize("kind", list(crds()), ids=lambda kind: kind.resource)
def test_every_rule_has_a_message_without_line_breaks(kind: Any) -> None:
    for rule in rules_of(crds()[kind].rules):
        assert rule.message
        # A kube-apiserver rejects line breaks in a message.
        assert "\n" not in rule.message + rule.message_expression


def test_every_rule_is_violated_by_a_case() -> None:
    messages_of = "\n".join(text for case in CASES for text in case.answers)
    silent = [
        rule.rule
        for kind in crds()
        for rule in rules_of(crds()[kind].rules)
        if not rule.message_expression and rule.message not in messages_of
    ]
    assert silent == []


def tree(*rules: Json, **more: Any) -> RuleTree:
    new_rule_tree = rule_tree({"properties": {"spec": {"x-kubernetes-validations": list(rules), **more}}})
    assert new_rule_tree is not None
    return new_rule_tree


def messages_of(tree: RuleTree, spec: object, before: object = ABSENT) -> list[str]:
    old = ABSENT if before is ABSENT else {"spec": before}
    return [f"{problem.where}: {problem.what}" for problem in rule_problems(tree, {"spec": spec}, old)]


def test_schema_without_rules_has_no_rule_tree() -> None:
    assert rule_tree({"properties": {"a": {"items": {"type": "string"}}}}) is None
    assert list(rule_problems(None, {"spec": 1})) == []


def test_null_is_not_validated() -> None:
    assert messages_of(tree({"rule": "self.a == 1", "message": "m"}), None) == []


def test_transition_rule_is_not_evaluated_for_a_new_object() -> None:
    rules = tree({"rule": "self.a == oldSelf.a", "message": "m"})
    assert messages_of(rules, {"a": 1}) == []
    assert messages_of(rules, {"a": 2}, {"a": 1}) == ["spec: Invalid value: m"]


def test_unchanged_value_is_not_validated_again() -> None:
    rules = tree({"rule": "self.a == 1", "message": "m"})
    assert messages_of(rules, {"a": 2}, {"a": 2}) == []
    assert messages_of(rules, {"a": 2, "b": 3}, {"a": 2}) == ["spec: Invalid value: m"]


def test_transition_rule_is_not_evaluated_for_list_items() -> None:
    rules = tree(items={"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "m"}]})
    assert messages_of(rules, [1], [2]) == []


def test_map_value_violation_has_its_key_in_the_path() -> None:
    rules = tree(additionalProperties={"x-kubernetes-validations": [{"rule": "self < 2", "message": "m"}]})
    assert messages_of(rules, {"a": 1, "b": 2}) == ["spec.b: Invalid value: 2: m"]


def test_failing_expression_is_reported_as_a_problem() -> None:
    assert messages_of(tree({"rule": "self.none == 1", "message": "m"}), {"a": 1})[0].startswith(
        "spec: Invalid value: "
    )


@pytest.mark.parametrize("expression", ["self.none", "1 + 1", "''", "'a\\nb'"])
def test_invalid_message_expression_falls_back_to_the_message(expression: str) -> None:
    rules = tree({"rule": "self.a == 1", "message": "fixed", "messageExpression": expression})
    assert messages_of(rules, {"a": 2}) == ["spec: Invalid value: fixed"]


def test_rule_without_message_reports_its_expression() -> None:
    assert messages_of(tree({"rule": "self.a == 1"}), {"a": 2}) == ["spec: Invalid value: failed rule: self.a == 1"]


def test_field_path_and_reason_of_a_rule_are_reported() -> None:
    rules = tree({"rule": "has(self.a)", "message": "m", "fieldPath": ".a", "reason": "FieldValueRequired"})
    assert messages_of(rules, {"b": 2}) == ["spec.a: Required value: m"]


def test_fields_without_rules_are_not_converted_to_cel() -> None:
    rules = crds()[SERVING_SERVICE].rules
    assert rules is not None
    assert rules.words is not None
    assert "resources" not in rules.words


def test_compared_template_is_converted_to_cel_completely() -> None:
    rules = crds()[SERVING_SERVICE].rules
    assert rules is not None
    assert rules.properties["spec"].properties["template"].words is None


def test_changed_serving_state_evaluates_no_container_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    old = admit(REVISION, REVISION_OBJECT)
    new = {**old, "spec": {**old["spec"], "servingState": "Reserve"}}
    validations.failures.cache_clear()
    requests: list[str] = []
    program = validations._program

    def noted(text: str) -> validations._Program:
        requests.append(text)
        return program(text)

    monkeypatch.setattr(validations, "_program", noted)
    admit(REVISION, new, old)
    assert not [text for text in requests if "containerPort" in text or "mountPath" in text]
    assert [text for text in requests if "Retired" in text]


def test_all_violations_are_reported_at_once() -> None:
    pod = {"containers": [{"image": ""}, {"image": "", "ports": [{"containerPort": 8012}]}]}
    spec = {"template": {"metadata": {}, "spec": pod}, "traffic": [{"percent": 1}]}
    assert len(responses(SERVING_SERVICE, {"metadata": {"name": "A"}, "spec": spec}, None)) == 5
