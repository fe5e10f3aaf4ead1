"""For any traffic: HTTPRoutes route all requests by the percentages, and reconciliation settles."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from serving.controller.routes.httproutes import HttpRoutes, desired_httproutes, reconcile_httproutes
from serving.controller.values.conditions import Condition
from serving.core.model.objects import Object, name_of
from serving.net.cluster.port import Create, Delete, Patch
from tests.unit.controller.builders import a_route, merged, stored
from tests.unit.controller.routes.test_httproutes import FRONT, rules

REVISIONS = st.sampled_from([f"hello-0000{number}" for number in range(1, 6)])
TAGS = st.one_of(st.none(), st.sampled_from(["blue", "green", "next", "old"]))


@st.composite
def traffic(draw: st.DrawFn) -> list[Object]:
    """Targets whose percents sum to 100, with unique tags."""
    count = draw(st.integers(1, 6))
    cuts = sorted(draw(st.lists(st.integers(0, 100), min_size=count - 1, max_size=count - 1)))
    percents = [high - low for low, high in zip([0, *cuts], [*cuts, 100], strict=True)]
    targets: list[Object] = []
    for percent in percents:
        target: Object = {"revisionName": draw(REVISIONS), "percent": percent}
        tag = draw(TAGS)
        if tag and tag not in {entry.get("tag") for entry in targets}:
            target["tag"] = tag
        targets.append(target)
    return targets


def desired(targets: list[Object]) -> dict[str, Object]:
    httproutes = desired_httproutes(a_route(), targets, settings=FRONT, lost={})
    assert not isinstance(httproutes, Condition)
    return dict(httproutes)


@given(traffic())
def test_httproute_weights_equal_percents_and_tags_have_host_and_header(targets: list[Object]) -> None:
    entry = desired(targets)
    shares: Counter[str] = Counter()
    for target in targets:
        shares[target["revisionName"]] += target["percent"]
    *requests, (no_tags, weights) = rules(entry["hello"])
    assert not no_tags
    assert sum(weights.values()) == 100
    assert weights == {name: share for name, share in shares.items() if share}
    tags = {target["tag"]: target["revisionName"] for target in targets if target.get("tag")}
    assert {tag: name for of_it, backends in requests for tag in of_it for name in backends} == tags
    assert {f"hello.{tag}" for tag in tags} | {"hello"} == entry.keys()
    assert all(rules(entry[f"hello.{tag}"]) == [([], {name: 100})] for tag, name in tags.items())
    hosts = [host for resource in entry.values() for host in resource["spec"]["hostnames"]]
    assert len(hosts) == len(set(hosts)) == len(entry)


@given(st.lists(traffic(), min_size=1, max_size=4))
def test_httproute_writes_reach_the_desired_state_and_settle(changes: list[list[Object]]) -> None:
    result: dict[str, Object] = {}
    for targets in changes:
        for is_settled in (False, True):
            writes, _ = reconcile_httproutes(
                a_route(), targets, HttpRoutes(existing=list(result.values())), settings=FRONT, lost={}
            )
            assert not (is_settled and writes)
            for write in writes:
                match write:
                    case Create(body=body):
                        result[name_of(body)] = stored(body)
                    case Patch(name=name, patch=patch):
                        result[name] = merged(result[name], patch)
                    case Delete(name=name):
                        del result[name]
        assert {name: value["spec"] for name, value in result.items()} == {
            name: resource["spec"] for name, resource in desired(targets).items()
        }
