"""HTTPRoutes of a route, and the reports of a Gateway."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from serving.controller.routes.httproutes import (
    HttpRoutes,
    desired_httproutes,
    httproute_owner_name,
    reconcile_httproutes,
)
from serving.controller.values.conditions import Condition
from serving.core.model.knative import VISIBILITY_LABEL
from serving.core.model.objects import Object
from serving.core.model.rollout import ConfigurationRollout, RevisionShare, Rollout
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Delete, Patch, Write
from tests.unit.controller.builders import SETTINGS, a_route, stored

GATEWAY = "gateways/front"
FRONT = msgspec.structs.replace(SETTINGS, public_services=True, gateway=GATEWAY)
SPLIT: list[Object] = [
    {"revisionName": "hello-00002", "latestRevision": True, "percent": 90},
    {"revisionName": "hello-00001", "latestRevision": False, "percent": 10, "tag": "old"},
]
WHOLE: list[Object] = [{"revisionName": "hello-00002", "latestRevision": True, "percent": 100}]
EVERYWHERE = {"type": "PathPrefix", "value": "/"}


def wanted(targets: Sequence[Object] = SPLIT, *, lost: Sequence[str] = (), **metadata: Any) -> dict[str, Object]:  # noqa: ANN401 - JSON
    httproutes = desired_httproutes(
        a_route(**metadata), targets, settings=FRONT, lost=dict.fromkeys(lost, ("default", "other"))
    )
    assert not isinstance(httproutes, Condition)
    return dict(httproutes)


def there(
    targets: Sequence[Object] = SPLIT, *, conditions: list[Object] | None = None, generation: int = 3
) -> list[Object]:
    """The HTTPRoutes on the server, with the Gateway's report about each."""
    parent = {"parentRef": {"namespace": "gateways", "name": "front"}, "conditions": conditions}
    status = {"status": {"parents": [parent]}} if conditions is not None else {}
    return [{**stored(httproute, generation=generation), **status} for httproute in wanted(targets).values()]


def condition(kind: str, status: str, *, reason: str = "", generation: int = 3) -> Object:
    return {"type": kind, "status": status, "reason": reason, "observedGeneration": generation}


GOOD = [condition("Accepted", "True"), condition("ResolvedRefs", "True")]


def decided(
    existing: Sequence[Object], targets: Sequence[Object] | None = SPLIT, *, missing: str = ""
) -> tuple[tuple[Write, ...], tuple[str, str, str]]:
    routes = HttpRoutes(existing=existing, missing=missing)
    writes, condition = reconcile_httproutes(a_route(), targets, routes, settings=FRONT, lost={})
    assert condition.type == "IngressReady"
    return writes, (condition.status.value, condition.reason, condition.message)


def rules(resource: Object) -> list[tuple[list[str], dict[str, int]]]:
    """The tags and the weights by Service of each rule."""
    return [
        (
            [header["value"] for match in rule["matches"] for header in match.get("headers", ())],
            {ref["name"]: ref["weight"] for ref in rule["backendRefs"]},
        )
        for rule in resource["spec"]["rules"]
    ]


def test_a_route_and_its_tag_have_an_httproute_each() -> None:
    entry = wanted()
    assert {name: value["spec"]["hostnames"] for name, value in entry.items()} == {
        "hello": ["hello.default.localhost"],
        "hello.old": ["old-hello.default.localhost"],
    }
    assert [httproute_owner_name(name) for name in entry] == ["hello", "hello"]
    assert rules(entry["hello"]) == [(["old"], {"hello-00001": 100}), ([], {"hello-00002": 90, "hello-00001": 10})]
    assert rules(entry["hello.old"]) == [([], {"hello-00001": 100})]


def test_a_rule_names_services_and_the_revision_for_activators() -> None:
    own = wanted(WHOLE)["hello"]
    assert own["spec"]["parentRefs"] == [
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "gateways", "name": "front"}
    ]
    reported = [
        {"name": "Knative-Serving-Namespace", "value": "default"},
        {"name": "Knative-Serving-Revision", "value": "hello-00002"},
    ]
    assert own["spec"]["rules"] == [
        {
            "matches": [{"path": EVERYWHERE}],
            "backendRefs": [
                {
                    "group": "",
                    "kind": "Service",
                    "name": "hello-00002",
                    "port": 80,
                    "weight": 100,
                    "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": reported}}],
                }
            ],
            "timeouts": {"request": "0s"},
        }
    ]


def test_a_tag_is_asked_for_by_a_header_that_is_exactly_it() -> None:
    first, _ = wanted()["hello"]["spec"]["rules"]
    header = {"type": "Exact", "name": "Knative-Serving-Tag", "value": "old"}
    assert first["matches"] == [{"path": EVERYWHERE, "headers": [header]}]


def test_it_is_the_routes_own_and_says_whose() -> None:
    metadata = wanted()["hello.old"]["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["labels"] == {"serving.knative.dev/service": "hello", "serving.knative.dev/route": "hello"}
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Route", "hello", True)


def test_targets_of_one_revision_are_one_backend_and_one_rule() -> None:
    targets: list[Object] = [
        {"revisionName": "r1", "percent": 30, "tag": "a"},
        {"revisionName": "r1", "percent": 30, "tag": "b"},
        {"revisionName": "r2", "percent": 40},
        {"revisionName": "r3", "percent": 0, "tag": "c"},
        {"revisionName": "r4", "tag": "d"},
    ]
    entry = wanted(targets)
    assert rules(entry["hello"]) == [
        (["a", "b"], {"r1": 100}),
        (["c"], {"r3": 100}),
        (["d"], {"r4": 100}),
        ([], {"r1": 60, "r2": 40}),
    ]
    assert entry.keys() == {"hello", "hello.a", "hello.b", "hello.c", "hello.d"}


def test_a_cluster_local_route_has_none() -> None:
    assert wanted(labels={VISIBILITY_LABEL: "cluster-local"}) == {}


def test_a_host_that_another_route_holds_has_none() -> None:
    assert wanted(lost=["old-hello.default.localhost"]).keys() == {"hello"}
    assert wanted(lost=["hello.default.localhost"]).keys() == {"hello.old"}


def test_without_traffic_only_tags_have_one() -> None:
    assert wanted([{"revisionName": "r1", "tag": "a"}]).keys() == {"hello.a"}


@pytest.mark.parametrize(
    ("targets", "what"),
    [
        ([{"revisionName": f"r{i}", "percent": 1} for i in range(17)], "16 revisions that share the traffic"),
        ([{"revisionName": f"r{i}", "tag": f"t{i}"} for i in range(16)], "15 revisions with tags"),
        ([{"revisionName": "r", "tag": f"t{i}"} for i in range(65)], "64 tags"),
    ],
)
def test_more_than_an_httproute_takes_is_reported_and_what_is_there_stays(targets: list[Object], what: str) -> None:
    writes, (status, reason, message) = decided(there(), targets)
    assert (writes, status, reason) == ((), "False", "TooManyTargets")
    assert f"An HTTPRoute takes {what}, and there are {len(targets)}." == message


def test_what_is_not_there_is_made_and_waited_for() -> None:
    writes, reported = decided([])
    assert [write.body["metadata"]["name"] for write in writes if isinstance(write, Create)] == ["hello", "hello.old"]
    assert {write.kind for write in writes} == {kinds.HTTP_ROUTE}
    message = 'HTTPRoute "hello" waits for Gateway "gateways/front" to accept it.'
    assert reported == ("Unknown", "HTTPRouteNotReady", message)


def test_what_the_server_fills_in_is_no_change() -> None:
    own, tagged = there(conditions=GOOD)
    own["spec"] = {**own["spec"], "useDefaultGateways": "None"}
    rule, *others = own["spec"]["rules"]
    own["spec"]["rules"] = [{**rule, "sessionPersistence": {}}, *others]
    assert decided([own, tagged]) == ((), ("True", "", ""))


@pytest.mark.parametrize("part", ["rules", "hostnames", "parentRefs"])
def test_what_has_changed_is_patched_whole_and_waited_for(part: str) -> None:
    own, tagged = there(conditions=GOOD)
    own["spec"] = {**own["spec"], part: [*own["spec"][part], own["spec"][part][0]]}
    (write,), (status, reason, _) = decided([own, tagged])
    assert isinstance(write, Patch)
    assert write.patch["spec"] == {part: wanted()["hello"]["spec"][part]}
    assert write.patch["metadata"]["resourceVersion"] == "7"
    assert (status, reason) == ("Unknown", "HTTPRouteNotReady")


@pytest.mark.parametrize("spec", [{}, {"rules": "none"}, {"rules": ["none", "none"]}])
def test_a_spec_that_is_none_is_set_right(spec: Object) -> None:
    own, tagged = there()
    own["spec"] = spec
    (write,), _ = decided([own, tagged])
    assert isinstance(write, Patch)
    assert write.patch["spec"] == wanted()["hello"]["spec"]


def test_a_tag_that_is_gone_takes_its_httproute_along() -> None:
    writes, _ = decided(there(), WHOLE)
    assert [write.name for write in writes if isinstance(write, Delete)] == ["hello.old"]


def test_an_object_of_another_owner_is_left_alone_and_reported() -> None:
    own, tagged = there(conditions=GOOD)
    theirs = {**tagged, "metadata": {**tagged["metadata"], "ownerReferences": []}}
    message = 'There is an existing HTTPRoute "hello.old" that we do not own.'
    assert decided([own, theirs]) == ((), ("False", "NotOwned", message))
    elsewhere = stored({"kind": "HTTPRoute", "metadata": {"name": "hello.more"}})
    assert decided([own, tagged, elsewhere]) == ((), ("True", "", ""))


def test_without_traffic_that_is_assigned_what_is_there_stays() -> None:
    assert decided(there(), None) == ((), ("Unknown", "IngressNotConfigured", "No traffic is assigned yet."))


def test_a_server_without_httproutes_is_reported() -> None:
    assert decided([], missing="there are none") == ((), ("False", "GatewayApiMissing", "there are none"))


@pytest.mark.parametrize(
    "conditions",
    [
        [],
        [condition("ResolvedRefs", "True")],
        [condition("Accepted", "True", generation=2), condition("ResolvedRefs", "True", generation=2)],
        [condition("Accepted", "True"), condition("ResolvedRefs", "Unknown")],
        [condition("Accepted", "False", generation=2)],
        [condition("Accepted", "Unknown")],
    ],
    ids=["nothing", "half", "of before", "not sure", "refused before", "thinking"],
)
def test_it_is_unknown_until_the_gateway_has_accepted_this_generation(conditions: list[Object]) -> None:
    assert decided(there(conditions=conditions))[1][:2] == ("Unknown", "HTTPRouteNotReady")


@pytest.mark.parametrize(
    "conditions",
    [
        [condition("Accepted", "True")],
        [{"type": "Accepted", "status": "True"}],
        [*GOOD, condition("Programmed", "True")],
        [*GOOD, condition("example.com/Cached", "False"), condition("Programmed", "False", generation=2)],
        [condition("Accepted", "True", generation=4)],
    ],
    ids=["accepted", "without a generation", "programmed", "other words", "of a later one"],
)
def test_it_is_ready_when_the_gateway_has_accepted_it(conditions: list[Object]) -> None:
    assert decided(there(conditions=conditions)) == ((), ("True", "", ""))


@pytest.mark.parametrize("kind", ["Accepted", "ResolvedRefs", "Programmed"])
def test_a_refusal_of_the_gateway_is_reported_in_its_words(kind: str) -> None:
    good, bad = there(conditions=GOOD)[0], condition(kind, "False", reason="NoSuch")
    tagged = there(conditions=[condition("Accepted", "True"), {**bad, "message": "no such thing"}])[1]
    message = 'Gateway "gateways/front" does not take HTTPRoute "hello.old": no such thing'
    assert decided([good, tagged])[1] == ("False", "NoSuch", message)
    bare = there(conditions=[{**bad, "reason": ""}])[1]
    assert decided([good, bare])[1] == ("False", "HTTPRouteNotReady", message.replace("no such thing", kind))


def test_a_refusal_goes_before_a_wait() -> None:
    waiting, refused = there()[0], there(conditions=[condition("Accepted", "False", reason="NoSuch")])[1]
    assert decided([waiting, refused])[1][:2] == ("False", "NoSuch")


@pytest.mark.parametrize(
    ("parent", "is_meant"),
    [
        ({"namespace": "gateways", "name": "front"}, True),
        ({"namespace": "gateways", "name": "back"}, False),
        ({"namespace": "elsewhere", "name": "front"}, False),
        ({"name": "front"}, False),
        (None, False),
    ],
)
def test_only_the_gateway_that_is_set_is_heard(parent: Object | None, *, is_meant: bool) -> None:
    results = [
        {**httproute, "status": {"parents": [{"parentRef": parent, "conditions": GOOD}]}} for httproute in there()
    ]
    assert (decided(results)[1][0] == "True") is is_meant
    nothing = [{**httproute, "status": {"parents": [{"parentRef": parent}]}} for httproute in there()]
    assert decided(nothing)[1][0] == "Unknown"


def test_a_gateway_of_the_same_namespace_needs_no_namespace() -> None:
    near = msgspec.structs.replace(FRONT, gateway="default/front")
    httproutes = desired_httproutes(a_route(), WHOLE, settings=near, lost={})
    assert not isinstance(httproutes, Condition)
    parents = {"status": {"parents": [{"parentRef": {"name": "front"}, "conditions": GOOD}]}}
    results = [{**stored(httproute, generation=3), **parents} for httproute in httproutes.values()]
    _, condition = reconcile_httproutes(a_route(), WHOLE, HttpRoutes(existing=results), settings=near, lost={})
    assert condition.status == "True"


def test_a_tag_that_is_rolled_out_shares_its_host_and_header() -> None:
    targets: list[Object] = [
        {"revisionName": "hello-00001", "latestRevision": False, "percent": 99, "tag": "new"},
        {"revisionName": "hello-00002", "latestRevision": True, "percent": 1, "tag": "new"},
    ]
    shares = (
        RevisionShare(revision_name="hello-00001", percent=60),
        RevisionShare(revision_name="hello-00002", percent=40),
    )
    target = ConfigurationRollout(configuration_name="hello", tag="new", percent=100, revisions=shares)
    rollout = Rollout(configurations=(target,))
    route = a_route(traffic=[{"latestRevision": True, "percent": 100, "tag": "new"}])
    httproutes = desired_httproutes(route, targets, rollout=rollout, settings=FRONT, lost={})
    assert not isinstance(httproutes, Condition)
    split = {"hello-00001": 60, "hello-00002": 40}
    assert rules(httproutes["hello.new"]) == [([], split)]
    assert rules(httproutes["hello"]) == [(["new"], split), ([], {"hello-00001": 99, "hello-00002": 1})]
