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


def existing_httproutes(
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


def test_route_and_each_tag_have_an_httproute() -> None:
    entry = wanted()
    assert {name: value["spec"]["hostnames"] for name, value in entry.items()} == {
        "hello": ["hello.default.localhost"],
        "hello.old": ["old-hello.default.localhost"],
    }
    assert [httproute_owner_name(name) for name in entry] == ["hello", "hello"]
    assert rules(entry["hello"]) == [(["old"], {"hello-00001": 100}), ([], {"hello-00002": 90, "hello-00001": 10})]
    assert rules(entry["hello.old"]) == [([], {"hello-00001": 100})]


def test_httproute_rule_has_backend_service_and_revision_headers() -> None:
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


def test_tag_rule_matches_exact_tag_header() -> None:
    first, _ = wanted()["hello"]["spec"]["rules"]
    header = {"type": "Exact", "name": "Knative-Serving-Tag", "value": "old"}
    assert first["matches"] == [{"path": EVERYWHERE, "headers": [header]}]


def test_httproute_is_owned_and_labelled_by_its_route() -> None:
    metadata = wanted()["hello.old"]["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["labels"] == {"serving.knative.dev/service": "hello", "serving.knative.dev/route": "hello"}
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Route", "hello", True)


def test_targets_of_one_revision_share_backend_and_rule() -> None:
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


def test_cluster_local_route_has_no_httproute() -> None:
    assert wanted(labels={VISIBILITY_LABEL: "cluster-local"}) == {}


def test_host_of_another_route_has_no_httproute() -> None:
    assert wanted(lost=["old-hello.default.localhost"]).keys() == {"hello"}
    assert wanted(lost=["hello.default.localhost"]).keys() == {"hello.old"}


def test_route_without_traffic_has_httproutes_of_tags_only() -> None:
    assert wanted([{"revisionName": "r1", "tag": "a"}]).keys() == {"hello.a"}


@pytest.mark.parametrize(
    ("targets", "what"),
    [
        ([{"revisionName": f"r{i}", "percent": 1} for i in range(17)], "16 revisions that share the traffic"),
        ([{"revisionName": f"r{i}", "tag": f"t{i}"} for i in range(16)], "15 revisions with tags"),
        ([{"revisionName": "r", "tag": f"t{i}"} for i in range(65)], "64 tags"),
    ],
)
def test_too_many_targets_are_reported_and_existing_httproutes_retained(targets: list[Object], what: str) -> None:
    writes, (status, reason, message) = decided(existing_httproutes(), targets)
    assert (writes, status, reason) == ((), "False", "TooManyTargets")
    assert f"An HTTPRoute takes {what}, and there are {len(targets)}." == message


def test_missing_httproutes_are_created_and_route_waits_for_gateway() -> None:
    writes, reported = decided([])
    assert [write.body["metadata"]["name"] for write in writes if isinstance(write, Create)] == ["hello", "hello.old"]
    assert {write.kind for write in writes} == {kinds.HTTP_ROUTE}
    message = 'HTTPRoute "hello" waits for Gateway "gateways/front" to accept it.'
    assert reported == ("Unknown", "HTTPRouteNotReady", message)


def test_server_defaults_of_httproute_are_no_change() -> None:
    own, tagged = existing_httproutes(conditions=GOOD)
    own["spec"] = {**own["spec"], "useDefaultGateways": "None"}
    rule, *others = own["spec"]["rules"]
    own["spec"]["rules"] = [{**rule, "sessionPersistence": {}}, *others]
    assert decided([own, tagged]) == ((), ("True", "", ""))


@pytest.mark.parametrize("part", ["rules", "hostnames", "parentRefs"])
def test_changed_httproute_part_is_patched_and_route_waits(part: str) -> None:
    own, tagged = existing_httproutes(conditions=GOOD)
    own["spec"] = {**own["spec"], part: [*own["spec"][part], own["spec"][part][0]]}
    (write,), (status, reason, _) = decided([own, tagged])
    assert isinstance(write, Patch)
    assert write.patch["spec"] == {part: wanted()["hello"]["spec"][part]}
    assert write.patch["metadata"]["resourceVersion"] == "7"
    assert (status, reason) == ("Unknown", "HTTPRouteNotReady")


@pytest.mark.parametrize("spec", [{}, {"rules": "none"}, {"rules": ["none", "none"]}])
def test_malformed_httproute_spec_is_replaced(spec: Object) -> None:
    own, tagged = existing_httproutes()
    own["spec"] = spec
    (write,), _ = decided([own, tagged])
    assert isinstance(write, Patch)
    assert write.patch["spec"] == wanted()["hello"]["spec"]


def test_httproute_of_removed_tag_is_deleted() -> None:
    writes, _ = decided(existing_httproutes(), WHOLE)
    assert [write.name for write in writes if isinstance(write, Delete)] == ["hello.old"]


def test_httproute_of_another_owner_is_reported_and_not_changed() -> None:
    own, tagged = existing_httproutes(conditions=GOOD)
    foreign = {**tagged, "metadata": {**tagged["metadata"], "ownerReferences": []}}
    message = 'There is an existing HTTPRoute "hello.old" that we do not own.'
    assert decided([own, foreign]) == ((), ("False", "NotOwned", message))
    elsewhere = stored({"kind": "HTTPRoute", "metadata": {"name": "hello.more"}})
    assert decided([own, tagged, elsewhere]) == ((), ("True", "", ""))


def test_httproutes_are_retained_while_traffic_is_unassigned() -> None:
    assert decided(existing_httproutes(), None) == (
        (),
        ("Unknown", "IngressNotConfigured", "No traffic is assigned yet."),
    )


def test_missing_gateway_api_is_reported() -> None:
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
def test_ingress_is_unknown_until_gateway_accepts_this_generation(conditions: list[Object]) -> None:
    assert decided(existing_httproutes(conditions=conditions))[1][:2] == ("Unknown", "HTTPRouteNotReady")


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
def test_ingress_is_ready_when_gateway_has_accepted(conditions: list[Object]) -> None:
    assert decided(existing_httproutes(conditions=conditions)) == ((), ("True", "", ""))


@pytest.mark.parametrize("kind", ["Accepted", "ResolvedRefs", "Programmed"])
def test_gateway_rejection_is_reported_with_its_message(kind: str) -> None:
    good, bad = existing_httproutes(conditions=GOOD)[0], condition(kind, "False", reason="NoSuch")
    tagged = existing_httproutes(conditions=[condition("Accepted", "True"), {**bad, "message": "no such thing"}])[1]
    message = 'Gateway "gateways/front" does not take HTTPRoute "hello.old": no such thing'
    assert decided([good, tagged])[1] == ("False", "NoSuch", message)
    bare = existing_httproutes(conditions=[{**bad, "reason": ""}])[1]
    assert decided([good, bare])[1] == ("False", "HTTPRouteNotReady", message.replace("no such thing", kind))


def test_gateway_rejection_takes_precedence_over_waiting() -> None:
    waiting, refused = (
        existing_httproutes()[0],
        existing_httproutes(conditions=[condition("Accepted", "False", reason="NoSuch")])[1],
    )
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
def test_only_status_of_configured_gateway_is_used(parent: Object | None, *, is_meant: bool) -> None:
    results = [
        {**httproute, "status": {"parents": [{"parentRef": parent, "conditions": GOOD}]}}
        for httproute in existing_httproutes()
    ]
    assert (decided(results)[1][0] == "True") is is_meant
    nothing = [{**httproute, "status": {"parents": [{"parentRef": parent}]}} for httproute in existing_httproutes()]
    assert decided(nothing)[1][0] == "Unknown"


def test_parent_reference_without_namespace_is_in_namespace_of_route() -> None:
    near = msgspec.structs.replace(FRONT, gateway="default/front")
    httproutes = desired_httproutes(a_route(), WHOLE, settings=near, lost={})
    assert not isinstance(httproutes, Condition)
    parents = {"status": {"parents": [{"parentRef": {"name": "front"}, "conditions": GOOD}]}}
    results = [{**stored(httproute, generation=3), **parents} for httproute in httproutes.values()]
    _, condition = reconcile_httproutes(a_route(), WHOLE, HttpRoutes(existing=results), settings=near, lost={})
    assert condition.status == "True"


def test_rollout_of_tag_splits_its_host_and_header_rule() -> None:
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
