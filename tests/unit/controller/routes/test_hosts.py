"""The hosts of a route, and conflicts between routes."""

import pytest

from serving.controller.routes.hosts import Claims, claims_of, tag_claims, url_of
from serving.core.model.knative import CLAIMED_TAGS_ANNOTATION
from tests.invariants import validate
from tests.unit.controller.builders import CREATED, NOW, SETTINGS, a_route

BLUE = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]
HELLO, BLUE_HELLO = ("default", "hello"), ("default", "blue-hello")
HOST = "blue-hello.default.localhost"


@pytest.mark.parametrize(("port", "url"), [(80, "http://a"), (8080, "http://a:8080")])
def test_port_80_is_left_out(port: int, url: str) -> None:
    assert url_of("a", port) == url


def test_a_tag_is_claimed_since_it_was_first_seen() -> None:
    route = a_route(traffic=BLUE, annotations={CLAIMED_TAGS_ANNOTATION: '{"blue": "then", "gone": "then"}'})
    assert tag_claims(route, NOW) == {"blue": "then"}
    assert tag_claims(a_route(traffic=BLUE), NOW) == {"blue": NOW}


@pytest.mark.parametrize("text", ["", "[]", "nonsense"])
def test_an_annotation_that_cannot_be_read_is_none(text: str) -> None:
    assert tag_claims(a_route(traffic=BLUE, annotations={CLAIMED_TAGS_ANNOTATION: text}), NOW) == {"blue": NOW}


def test_a_route_claims_its_host_since_it_was_made_and_a_new_tag_last() -> None:
    claims = claims_of(a_route(traffic=BLUE), SETTINGS.host_rules)
    assert claims["hello.default.localhost"] == CREATED
    assert claims[HOST] > "9999"


def test_the_oldest_claim_wins() -> None:
    claims = Claims()
    claims.put(HELLO, {HOST: "2026-02"})
    assert claims.put(BLUE_HELLO, {HOST: "2026-01"}) == {HELLO}
    assert claims.holder(HOST) == BLUE_HELLO


def test_of_two_claims_of_one_time_the_first_by_name_wins() -> None:
    claims = Claims()
    claims.put(HELLO, {HOST: "2026"})
    claims.put(BLUE_HELLO, {HOST: "2026"})
    assert claims.holder(HOST) == BLUE_HELLO


def test_a_host_that_is_abandoned_goes_to_the_next() -> None:
    claims = Claims()
    claims.put(HELLO, {HOST: "2026-02"})
    claims.put(BLUE_HELLO, {HOST: "2026-01"})
    assert claims.drop(BLUE_HELLO) == {HELLO}
    assert claims.holder(HOST) == HELLO
    claims.put(HELLO, {"other": "2026"})
    assert (claims.holder(HOST), claims.holder("other")) == (None, HELLO)
    validate(claims)


def test_unclaimed_objects_are_dropped_silently() -> None:
    assert Claims().drop(HELLO) == set()
