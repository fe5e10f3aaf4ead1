from typing import Any

import pytest

from serving.cluster.kinds import Kind
from serving.home.schemas.crds import crds
from tests.unit.config.celcost import DEFINITION_LIMIT, RULE_LIMIT, costs_of, rule_cost

TEXT = {"type": "string", "maxLength": 5}
LISTS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "array", "maxItems": 10, "items": TEXT}, "b": TEXT, "c": {"type": "string"}},
}


@pytest.mark.parametrize("kind", crds(), ids=lambda kind: kind.resource)
def test_a_server_takes_the_rules_of_a_definition(kind: Kind) -> None:
    costs = list(costs_of(crds()[kind].schema))
    assert [(path, text, cost) for path, text, cost in costs if cost > RULE_LIMIT] == []
    assert sum(cost for _, _, cost in costs) < DEFINITION_LIMIT


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("self.b == ''", 2),
        ("self.b == self.b", 2 + 2 + 2),
        ("has(self.b) && self.b != 'abc'", 2 + 2 + 1),
        ("self.b in ['a', 'b']", 2 + 10 + 2),
        ("size(self.a) < 2", 2 + 1 + 1),
        ("self.a.all(x, x == self.b)", 2 + 1 + 10 * (3 + 1 + 2 + 2)),
        ("self.a.exists_one(x, x == 'abcde')", 2 + 2 + 10 * (2 + 1 + 1)),
        ("self.a.filter(x, x == '').size() == 1", 2 + 11 + 10 * (13 + 1) + 1 + 1),
        ("!has(self.b) || self.b.matches('abcd')", 2 + 1 + 2 + 3 * 1),
        ("(has(self.b) ? 1 : 2) >= 1", 2 + 1),
        ("self.b.startsWith(self.b + '-')", 2 + 2 + 3 + 3),
    ],
)
def test_costs_are_added_up(text: str, cost: int) -> None:
    assert rule_cost(text, LISTS) == cost


@pytest.mark.parametrize("kind", crds(), ids=lambda kind: kind.resource)
def test_a_server_tells_rules_of_a_place_apart_by_their_text(kind: Kind) -> None:
    # The list of rules is a map by that, when a definition is applied on the server's side.
    rules = [(path, text) for path, text, _ in costs_of(crds()[kind].schema)]
    assert len(set(rules)) == len(rules)


def test_a_field_with_the_name_of_a_word_of_cel_is_not_found() -> None:
    schema = {"type": "object", "properties": {"namespace": TEXT}}
    with pytest.raises(LookupError, match="__namespace__"):
        rule_cost("has(self.namespace)", schema)


def test_what_has_no_bound_costs_as_much_as_a_request_may_have() -> None:
    assert rule_cost("self.c == self.c", LISTS) > 300_000


@pytest.mark.parametrize("text", ["self.d == ''", "has(self.b.c)", "other == ''", "self.b.all(x, true)"])
def test_what_the_schema_does_not_have_is_seen(text: str) -> None:
    with pytest.raises(LookupError):
        rule_cost(text, LISTS)
