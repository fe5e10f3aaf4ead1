"""The hosts of a route, and conflicts between routes."""

import pytest

from serving.controller.routes.hosts import Claims, claims_of, tag_claims
from serving.core.model.knative import CLAIMED_TAGS_ANNOTATION
from tests.invariants import validate
from tests.unit.controller.builders import CREATED, NOW, SETTINGS, a_route

BLUE = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]
HELLO, BLUE_HELLO = ("default", "hello"), ("default", "blue-hello")
HOST = "blue-hello.default.localhost"


def test_tag_claim_has_time_of_first_use() -> None:
    route = a_route(traffic=BLUE, annotations={CLAIMED_TAGS_ANNOTATION: '{"blue": "then", "gone": "then"}'})
    assert tag_claims(route, NOW) == {"blue": "then"}
    assert tag_claims(a_route(traffic=BLUE), NOW) == {"blue": NOW}


@pytest.mark.parametrize("text", ["", "[]", "nonsense"])
def test_malformed_tag_claims_annotation_is_ignored(text: str) -> None:
    assert tag_claims(a_route(traffic=BLUE, annotations={CLAIMED_TAGS_ANNOTATION: text}), NOW) == {"blue": NOW}


def test_route_claims_host_from_creation_and_new_tag_last() -> None:
    claims = claims_of(a_route(traffic=BLUE), SETTINGS.host_rules)
    assert claims["hello.default.localhost"] == CREATED
    assert claims[HOST] > "9999"


def test_oldest_claim_of_a_host_wins() -> None:
    claims = Claims()
    claims.put(HELLO, {HOST: "2026-02"})
    assert claims.put(BLUE_HELLO, {HOST: "2026-01"}) == {HELLO}
    assert claims.holder(HOST) == BLUE_HELLO


def test_equally_old_claims_are_ordered_by_name() -> None:
    claims = Claims()
    claims.put(HELLO, {HOST: "2026"})
    claims.put(BLUE_HELLO, {HOST: "2026"})
    assert claims.holder(HOST) == BLUE_HELLO


def test_abandoned_host_passes_to_next_claim() -> None:
    claims = Claims()
    claims.put(HELLO, {HOST: "2026-02"})
    claims.put(BLUE_HELLO, {HOST: "2026-01"})
    assert claims.drop(BLUE_HELLO) == {HELLO}
    assert claims.holder(HOST) == HELLO
    claims.put(HELLO, {"other": "2026"})
    assert (claims.holder(HOST), claims.holder("other")) == (None, HELLO)
    validate(claims)


def test_dropping_object_without_claims_has_no_effect() -> None:
    assert Claims().drop(HELLO) == set()
