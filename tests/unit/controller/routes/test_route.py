"""The status of a route."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import pytest

from serving.controller.routes.httproutes import HttpRoutes
from serving.controller.routes.rollout import RouteTargets
from serving.controller.routes.rolloutcheck import RolloutJudgement, RolloutVerdict
from serving.controller.routes.route import RouteContext, reconcile_route
from serving.controller.values.naming import revisions_named_by
from serving.controller.values.writes import UNSETTLED_S, UNSTARTED_S, Note, WritePlan
from serving.core.model.knative import ACCESS_ANNOTATION, CLAIMED_TAGS_ANNOTATION, ROLLOUT_ANNOTATION, VISIBILITY_LABEL
from serving.core.model.objects import Key, Object, name_of
from serving.core.model.rollout import read_rollout
from serving.core.model.routepolicy import route_digest
from serving.core.settings.controller import ControllerSettings
from serving.net.aio.clock import stamp
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Patch
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    SETTINGS,
    a_configuration,
    a_revision,
    a_route,
    condition_values,
    merged,
    stored,
    with_ready,
    written_status,
)

SPLIT: list[Object] = [
    {"latestRevision": True, "percent": 90},
    {"revisionName": "hello-00001", "percent": 10, "tag": "old"},
]
LATEST: Object = {**a_configuration(), "status": {"latestReadyRevisionName": "hello-00002"}}
READY = RouteTargets(configurations={"hello": LATEST}, revisions={"hello-00001": with_ready(a_revision(), "True")})
NONE = RouteTargets(configurations={"hello": a_configuration()}, revisions={})

GRADUAL = {"serving.knative.dev/rollout-duration": "10s"}
CHECKED = {**GRADUAL, "serving.dev/rollout-check": "errors<1%"}


def plan_for(
    route: Object,
    known: RouteTargets = READY,
    *,
    lost: Mapping[str, Key] | None = None,
    settings: ControllerSettings = SETTINGS,
) -> WritePlan:
    return reconcile_route(route, known, RouteContext(lost=lost or {}), settings=settings, now=NOW, now_s=NOW_S)


def status_of(route: Object, known: RouteTargets = READY, *, lost: Mapping[str, Key] | None = None) -> Object:
    return written_status(plan_for(route, known, lost=lost), kinds.ROUTE)


def test_servable_route_is_ready_with_url() -> None:
    status = status_of(a_route())
    assert status["url"] == "http://hello.default.localhost:8080"
    assert status["address"] == {"url": "http://hello.default.svc.cluster.local:8081"}
    assert status["traffic"] == [{"revisionName": "hello-00002", "latestRevision": True, "percent": 100}]
    assert [
        condition_values(status, condition_type)[0]
        for condition_type in ("Ready", "AllTrafficAssigned", "IngressReady")
    ] == ["True"] * 3
    assert condition_values(status, "CertificateProvisioned") == (
        "True",
        "TLSNotEnabled",
        "external-domain-tls is not enabled",
    )


def test_route_urls_omit_port_80() -> None:
    settings = msgspec.structs.replace(SETTINGS, public_port=80, inner_port=80)
    status = written_status(plan_for(a_route(), settings=settings), kinds.ROUTE)
    assert (status["url"], status["address"]["url"]) == (
        "http://hello.default.localhost",
        "http://hello.default.svc.cluster.local",
    )


def test_split_traffic_and_tag_url_are_in_status() -> None:
    assert status_of(a_route(traffic=SPLIT))["traffic"] == [
        {"revisionName": "hello-00002", "latestRevision": True, "percent": 90},
        {
            "revisionName": "hello-00001",
            "latestRevision": False,
            "percent": 10,
            "tag": "old",
            "url": "http://old-hello.default.localhost:8080",
        },
    ]


def test_cluster_local_route_has_no_public_url() -> None:
    status = status_of(a_route(traffic=SPLIT, labels={VISIBILITY_LABEL: "cluster-local"}))
    assert status["url"] == status["address"]["url"] == "http://hello.default.svc.cluster.local:8081"
    assert status["traffic"][1]["url"] == "http://old-hello.default.svc.cluster.local:8081"
    assert condition_values(status, "CertificateProvisioned")[2] == "TLS is not enabled for cluster-local"


def test_traffic_is_unchanged_until_all_targets_are_ready() -> None:
    before = [{"revisionName": "hello-00001", "latestRevision": True, "percent": 100}]
    route = {**a_route(), "status": {"traffic": before}}
    status = status_of(route, NONE)
    assert "traffic" not in status
    assert condition_values(status, "Ready")[:2] == ("Unknown", "RevisionMissing")


def test_new_route_without_revision_has_no_traffic() -> None:
    status = status_of(a_route(), NONE)
    assert "traffic" not in status
    assert status["url"] == "http://hello.default.localhost:8080"


def test_status_of_route_without_revision_is_debounced() -> None:
    route = {key: value for key, value in a_route().items() if key != "status"}
    starting = {**a_configuration(), "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    known = RouteTargets(configurations={"hello": starting}, revisions={})
    plan = reconcile_route(route, known, RouteContext(lost={}), settings=ControllerSettings(), now=NOW, now_s=NOW_S)
    assert plan.debounce_s == UNSETTLED_S
    known = RouteTargets(configurations={"hello": a_configuration()}, revisions={})
    plan = reconcile_route(route, known, RouteContext(lost={}), settings=ControllerSettings(), now=NOW, now_s=NOW_S)
    assert plan.debounce_s == UNSTARTED_S
    target = {"tag": "new", "configurationName": "hello", "latestRevision": True, "percent": 100}
    tagged = {**route, "spec": {"traffic": [target]}}
    plan = reconcile_route(tagged, known, RouteContext(lost={}), settings=ControllerSettings(), now=NOW, now_s=NOW_S)
    assert [write.subresource for write in plan.writes if isinstance(write, Patch)] == [None], "the claim of the tag"
    assert plan.debounce_s == 0


def test_host_claimed_by_another_route_is_reported() -> None:
    status = status_of(a_route(), lost={"hello.default.localhost": ("default", "other")})
    assert "url" not in status
    assert "address" in status
    message = 'The host "hello.default.localhost" is already in use by Route "default/other", which claimed it first.'
    assert condition_values(status, "IngressReady") == ("False", "DomainAlreadyClaimed", message)
    assert condition_values(status, "Ready")[0] == "False"


def test_invalid_access_annotation_makes_route_not_ready() -> None:
    status = status_of(a_route(annotations={ACCESS_ANNOTATION: "secret"}))
    state, reason, message = condition_values(status, "IngressReady")
    assert (state, reason) == ("False", "InvalidAnnotation")
    assert '"secret", expected "public" or "private"' in message
    assert status["traffic"], "its traffic continues"


def test_tag_without_host_has_no_url_and_retains_traffic() -> None:
    lost = {"old-hello.default.localhost": ("default", "old-hello")}
    status = status_of(a_route(traffic=SPLIT), lost=lost)
    assert "url" in status
    assert [("url" in target, target["percent"]) for target in status["traffic"]] == [(False, 90), (False, 10)]
    assert condition_values(status, "IngressReady")[0] == "False"


def test_cluster_local_host_of_another_route_is_no_address() -> None:
    status = status_of(a_route(), lost={"hello.default.svc.cluster.local": ("default", "other")})
    assert "address" not in status


def test_new_tag_is_claimed_before_status_is_written() -> None:
    claim, _ = plan_for(a_route(traffic=SPLIT)).writes
    assert isinstance(claim, Patch)
    assert claim.patch["metadata"]["annotations"] == {CLAIMED_TAGS_ANNOTATION: f'{{"old": "{NOW}"}}'}


def test_claim_of_removed_tag_is_deleted() -> None:
    claim, _ = plan_for(a_route(annotations={CLAIMED_TAGS_ANNOTATION: '{"old": "then"}'})).writes
    assert isinstance(claim, Patch)
    assert claim.patch["metadata"]["annotations"] == {CLAIMED_TAGS_ANNOTATION: None}


def test_settled_route_plans_no_writes() -> None:
    route = a_route()
    (patch,) = plan_for(route).writes
    assert isinstance(patch, Patch)
    assert plan_for(merged(route, {"status": patch.patch["status"]})) == WritePlan()


def test_terminating_route_plans_no_writes() -> None:
    assert plan_for(stored(a_route(), deletionTimestamp=NOW)) == WritePlan()


def by_gateway(route: Object, known: RouteTargets = READY, *, refusal: str = "", missing: str = "") -> WritePlan:
    settings = msgspec.structs.replace(SETTINGS, public_services=True, gateway="gateways/front")
    place = RouteContext(lost={}, httproutes=HttpRoutes(missing=missing), refusal=refusal)
    return reconcile_route(route, known, place, settings=settings, now=NOW, now_s=NOW_S)


def created_names(plan: WritePlan) -> list[str]:
    return [write.body["metadata"]["name"] for write in plan.writes if isinstance(write, Create)]


def test_route_behind_gateway_waits_for_httproutes() -> None:
    plan = by_gateway(a_route(traffic=SPLIT))
    assert created_names(plan) == ["hello", "hello.old"]
    status = written_status(plan, kinds.ROUTE)
    assert (
        condition_values(status, "IngressReady")[:2]
        == condition_values(status, "Ready")[:2]
        == ("Unknown", "HTTPRouteNotReady")
    )
    assert status["url"] == "http://hello.default.localhost:8080"


def test_previously_assigned_traffic_retains_its_httproutes() -> None:
    before = [{"revisionName": "hello-00001", "latestRevision": True, "percent": 100}]
    assert created_names(by_gateway({**a_route(), "status": {"traffic": before}}, NONE)) == ["hello"]
    assert created_names(by_gateway(a_route(), NONE)) == []


def test_rejected_httproute_is_not_created_again() -> None:
    plan = by_gateway(a_route(), refusal="no such name")
    assert created_names(plan) == []
    assert condition_values(written_status(plan, kinds.ROUTE), "IngressReady") == (
        "False",
        "CreationFailed",
        "no such name",
    )


def test_missing_gateway_api_is_reported_once_as_event() -> None:
    plan = by_gateway(a_route(), missing="there are none")
    (note,) = plan.notes
    assert (note.reason, note.message, note.warning) == ("GatewayApiMissing", "there are none", True)
    after = merged(a_route(), {"status": written_status(plan, kinds.ROUTE)})
    assert by_gateway(after, missing="there are none").notes == ()
    assert [each_note.message for each_note in by_gateway(after, missing="still none").notes] == ["still none"]
    assert by_gateway(after).notes == ()


def test_lost_host_is_reported_as_event() -> None:
    route = a_route()
    (note,) = plan_for(route, lost={"hello.default.localhost": ("default", "other")}).notes
    assert (note.about, note.reason) == (route, "DomainAlreadyClaimed")
    assert isinstance(note, Note)


def rolled(
    route: Object,
    latest: str,
    *,
    now_s: float,
    settings: ControllerSettings = SETTINGS,
    judged: Mapping[str, RolloutJudgement] = MappingProxyType({}),
    failing: str = "",
) -> tuple[Object, WritePlan]:
    """The route after the writes planned at this time, and the plan."""
    configuration = {**a_configuration(), "status": {"latestReadyRevisionName": latest}}
    names = set(revisions_named_by(route))
    both = (a_revision(), a_revision(generation=2))
    revisions = {name_of(resource): with_ready(resource, str(name_of(resource) != failing)) for resource in both}
    known = RouteTargets(
        configurations={"hello": configuration}, revisions={name: revisions[name] for name in names & revisions.keys()}
    )
    context = RouteContext(lost={}, judged=judged)
    plan = reconcile_route(route, known, context, settings=settings, now=stamp(now_s), now_s=now_s)
    for write in plan.writes:
        assert isinstance(write, Patch)
        route = merged(route, write.patch)
    return route, plan


def shares_of(route: Object) -> list[tuple[str, int, bool]]:
    return [
        (target["revisionName"], target["percent"], target["latestRevision"]) for target in route["status"]["traffic"]
    ]


def test_rollout_duration_moves_traffic_in_steps() -> None:
    route, plan = rolled(a_route(annotations=GRADUAL), "hello-00001", now_s=0.0)
    assert condition_values(route["status"], "Ready")[0] == "True"
    assert plan.again_after_s is None
    route, plan = rolled(route, "hello-00002", now_s=100.25)
    assert shares_of(route) == [("hello-00001", 99, False), ("hello-00002", 1, True)]
    expected = ("Unknown", "RolloutInProgress", "A gradual rollout of the latest revision(s) is in progress.")
    assert condition_values(route["status"], "IngressReady") == condition_values(route["status"], "Ready") == expected
    assert plan.again_after_s == 1.0
    route, plan = rolled(route, "hello-00002", now_s=101.25)
    assert shares_of(route) == [("hello-00001", 89, False), ("hello-00002", 11, True)]
    for second in range(2, 11):
        route, plan = rolled(route, "hello-00002", now_s=100.25 + second)
    assert shares_of(route) == [("hello-00002", 100, True)]
    assert condition_values(route["status"], "Ready")[0] == "True"
    assert plan.again_after_s is None


def test_rollout_step_waits_for_ready_target() -> None:
    route, _ = rolled(a_route(annotations=GRADUAL), "hello-00001", now_s=0.0)
    route, _ = rolled(route, "hello-00002", now_s=100.0)
    route, plan = rolled(route, "hello-00002", now_s=101.0, failing="hello-00002")
    assert shares_of(route) == [("hello-00001", 99, False), ("hello-00002", 1, True)]
    assert plan.again_after_s is None
    route, _ = rolled(route, "hello-00002", now_s=102.0)
    assert shares_of(route) == [("hello-00001", 89, False), ("hello-00002", 11, True)]


@pytest.mark.parametrize("seconds", [1, 20])
def test_traffic_returned_by_failed_revision_moves_at_once(seconds: int) -> None:
    route, _ = rolled(a_route(annotations=GRADUAL), "hello-00001", now_s=0.0)
    for second in range(seconds):
        route, _ = rolled(route, "hello-00002", now_s=100.0 + second)
    route, _ = rolled(route, "hello-00001", now_s=200.0, failing="hello-00002")
    assert shares_of(route) == [("hello-00001", 100, True)]


def test_later_rollout_duration_starts_from_status() -> None:
    route, _ = rolled(a_route(), "hello-00001", now_s=0.0)
    assert ROLLOUT_ANNOTATION not in route["metadata"]["annotations"]
    route = merged(route, {"metadata": {"annotations": GRADUAL}})
    route, _ = rolled(route, "hello-00002", now_s=100.0)
    assert shares_of(route)[1] == ("hello-00002", 1, True)


def test_removed_rollout_duration_ends_rollout_immediately() -> None:
    route, _ = rolled(a_route(annotations=GRADUAL), "hello-00001", now_s=0.0)
    route, _ = rolled(route, "hello-00002", now_s=100.0)
    route = merged(route, {"metadata": {"annotations": dict.fromkeys(GRADUAL)}})
    route, _ = rolled(route, "hello-00002", now_s=100.1)
    assert shares_of(route) == [("hello-00002", 100, True)]
    assert ROLLOUT_ANNOTATION not in route["metadata"]["annotations"]


def test_rollback_to_named_revision_ends_rollout() -> None:
    route, _ = rolled(a_route(annotations=GRADUAL), "hello-00001", now_s=0.0)
    route, _ = rolled(route, "hello-00002", now_s=100.0)
    assert shares_of(route) == [("hello-00001", 99, False), ("hello-00002", 1, True)]
    back = {"revisionName": "hello-00001", "latestRevision": False, "percent": 100}
    route, plan = rolled(merged(route, {"spec": {"traffic": [back]}}), "hello-00002", now_s=100.5)
    assert shares_of(route) == [("hello-00001", 100, False)]
    assert condition_values(route["status"], "Ready")[0] == "True"
    assert plan.again_after_s is None
    # No rollout state remains for a later step.
    route, plan = rolled(route, "hello-00002", now_s=200.0)
    assert (shares_of(route), plan.again_after_s) == ([("hello-00001", 100, False)], None)
    assert read_rollout(route["metadata"]["annotations"]) == read_rollout({})


def test_rollout_duration_defaults_to_setting() -> None:
    settings = msgspec.structs.replace(SETTINGS, rollout_duration_s=10.0)
    route, _ = rolled(a_route(), "hello-00001", now_s=0.0, settings=settings)
    route, _ = rolled(route, "hello-00002", now_s=100.0, settings=settings)
    assert len(shares_of(route)) == 2
    instant = merged(a_route(), {"metadata": {"annotations": {"serving.knative.dev/rolloutDuration": "0s"}}})
    route, _ = rolled(instant, "hello-00001", now_s=0.0, settings=settings)
    route, _ = rolled(route, "hello-00002", now_s=100.0, settings=settings)
    assert shares_of(route) == [("hello-00002", 100, True)]


def test_rollout_pauses_while_traffic_is_unassigned() -> None:
    route, _ = rolled(a_route(annotations=GRADUAL), "hello-00001", now_s=0.0)
    route, _ = rolled(route, "hello-00002", now_s=100.0)
    before = shares_of(route)
    route, plan = rolled(route, "", now_s=200.0)
    assert shares_of(route) == before
    assert plan.again_after_s is None
    assert condition_values(route["status"], "Ready")[:2] == ("Unknown", "RevisionMissing")


def test_invalid_rollout_duration_is_reported_once() -> None:
    wrong = {"serving.knative.dev/rollout-duration": "soon"}
    route, plan = rolled(a_route(annotations=wrong), "hello-00001", now_s=0.0)
    (note,) = plan.notes
    assert (note.reason, note.warning) == ("RolloutDurationInvalid", True)
    assert "'soon'" in note.message
    assert rolled(route, "hello-00001", now_s=1.0)[1].notes == ()


def awaiting(route: Object, confirmed: str | None, targets: RouteTargets = READY) -> WritePlan:
    context = RouteContext(lost={}, confirmed=confirmed)
    return reconcile_route(route, targets, context, settings=SETTINGS, now=NOW, now_s=NOW_S)


def applied(route: Object, plan: WritePlan) -> Object:
    for write in plan.writes:
        assert isinstance(write, Patch)
        route = merged(route, write.patch)
    return route


def test_route_is_ready_once_activators_confirm_it() -> None:
    plan = awaiting(a_route(), "")
    route = applied(a_route(), plan)
    expected = ("Unknown", "Uninitialized", "Waiting for load balancer to be ready")
    assert condition_values(route["status"], "IngressReady") == condition_values(route["status"], "Ready") == expected
    assert plan.unconfirmed == route_digest(route, SETTINGS.host_rules)
    assert awaiting(route, "another").writes == ()
    plan = awaiting(route, plan.unconfirmed)
    assert condition_values(applied(route, plan)["status"], "Ready")[0] == "True"
    assert plan.unconfirmed == ""


def test_route_ready_before_restart_remains_ready() -> None:
    route = applied(a_route(), awaiting(a_route(), None))
    assert awaiting(route, "") == WritePlan()


def test_moved_traffic_waits_for_confirmation_again() -> None:
    route = applied(a_route(), awaiting(a_route(), None))
    configuration = {**a_configuration(), "status": {"latestReadyRevisionName": "hello-00003"}}
    moved = awaiting(
        route,
        route_digest(route, SETTINGS.host_rules),
        RouteTargets(configurations={"hello": configuration}, revisions={}),
    )
    assert condition_values(applied(route, moved)["status"], "Ready")[:2] == ("Unknown", "Uninitialized")


def test_route_without_traffic_needs_no_confirmation() -> None:
    plan = awaiting(a_route(), "", NONE)
    assert plan.unconfirmed == ""
    assert condition_values(applied(a_route(), plan)["status"], "IngressReady")[:2] == (
        "Unknown",
        "IngressNotConfigured",
    )


def test_rollout_continues_once_activators_confirm_first_percent() -> None:
    def at(route: Object, confirmed: str, now_s: float) -> WritePlan:
        configuration = {**a_configuration(), "status": {"latestReadyRevisionName": "hello-00002"}}
        targets = RouteTargets(configurations={"hello": configuration}, revisions={"hello-00001": a_revision()})
        context = RouteContext(lost={}, confirmed=confirmed)
        return reconcile_route(route, targets, context, settings=SETTINGS, now=stamp(now_s), now_s=now_s)

    route, _ = rolled(a_route(annotations=GRADUAL), "hello-00001", now_s=0.0)
    plan = at(route, route_digest(route, SETTINGS.host_rules), 100.0)
    route = applied(route, plan)
    assert condition_values(route["status"], "IngressReady")[1] == "Uninitialized"
    assert plan.again_after_s is None
    plan = at(route, plan.unconfirmed, 102.5)
    route = applied(route, plan)
    assert condition_values(route["status"], "IngressReady")[1] == "RolloutInProgress"
    # The activators took 3 s, and so does each step: 3 steps in 10 s.
    assert plan.again_after_s is not None
    assert round(plan.again_after_s, 3) == 3.333
    # After a restart of the controller the rollout continues.
    assert condition_values(applied(route, at(route, "", 103.0))["status"], "IngressReady")[1] == "RolloutInProgress"


def judged_as(verdict: RolloutVerdict) -> dict[str, RolloutJudgement]:
    return {"hello-00002": RolloutJudgement(verdict=verdict, why="9 of 9 responses were 5xx")}


def test_checked_rollout_waits_for_verdict() -> None:
    route, plan = rolled(a_route(annotations=CHECKED), "hello-00001", now_s=0.0)
    assert plan.watch is None
    route, plan = rolled(route, "hello-00002", now_s=100.0)
    assert plan.watch is not None
    assert (plan.watch.check.text, plan.watch.revisions, plan.watch.wait_max_s) == ("errors<1%", ("hello-00002",), 20.0)
    assert plan.again_after_s is None
    route, plan = rolled(route, "hello-00002", now_s=150.0, judged=judged_as(RolloutVerdict.HOLD))
    assert shares_of(route) == [("hello-00001", 99, False), ("hello-00002", 1, True)]
    route, plan = rolled(route, "hello-00002", now_s=151.0, judged=judged_as(RolloutVerdict.GO))
    assert shares_of(route)[1] == ("hello-00002", 11, True)
    assert plan.again_after_s == 1.0


def test_revision_that_fails_its_check_is_rolled_back_and_reported() -> None:
    route, _ = rolled(a_route(annotations=CHECKED), "hello-00001", now_s=0.0)
    route, _ = rolled(route, "hello-00002", now_s=100.0)
    route, plan = rolled(route, "hello-00002", now_s=102.0, judged=judged_as(RolloutVerdict.BACK))
    assert shares_of(route) == [("hello-00001", 100, False)]
    message = 'Revision "hello-00002" is rolled back by errors<1%: 9 of 9 responses were 5xx.'
    assert condition_values(route["status"], "Ready") == ("False", "RolledBack", message)
    assert [note.message for note in plan.notes] == [message]
    assert (plan.watch, plan.again_after_s) == (None, None)
    # It remains rolled back, also after a restart of the controller, until the check or the revision changes.
    route, plan = rolled(route, "hello-00002", now_s=500.0)
    assert shares_of(route) == [("hello-00001", 100, False)]
    assert plan.notes == ()
    changed = merged(route, {"metadata": {"annotations": {"serving.dev/rollout-check": "errors<90%"}}})
    route, _ = rolled(changed, "hello-00002", now_s=501.0)
    assert shares_of(route)[1] == ("hello-00002", 1, True)
    assert "serving.dev/rolled-back" not in route["metadata"]["annotations"]


def test_default_external_scheme_https_applies_to_public_urls() -> None:
    settings = msgspec.structs.replace(SETTINGS, default_external_scheme="https", public_tls_port=443)
    status = written_status(plan_for(a_route(traffic=SPLIT), settings=settings), kinds.ROUTE)
    assert status["url"] == "https://hello.default.localhost"
    assert status["traffic"][1]["url"] == "https://old-hello.default.localhost"
    assert status["address"] == {"url": "http://hello.default.svc.cluster.local:8081"}


def test_invalid_domain_template_gives_no_url_and_is_reported() -> None:
    settings = msgspec.structs.replace(SETTINGS, domain_template="{{.Labels.team}}.{{.Domain}}")
    status = written_status(plan_for(a_route(traffic=SPLIT), settings=settings), kinds.ROUTE)
    assert "url" not in status
    assert "url" not in status["traffic"][1]
    status_, reason, message = condition_values(status, "IngressReady")
    assert (status_, reason) == ("False", "DomainNameInvalid")
    assert 'makes "<no value>.localhost"' in message


def test_route_with_cluster_domain_is_cluster_local() -> None:
    settings = msgspec.structs.replace(SETTINGS, domains="svc.cluster.local: {selector: {app: secret}}")
    status = written_status(plan_for(a_route(traffic=SPLIT, labels={"app": "secret"}), settings=settings), kinds.ROUTE)
    assert status["url"] == "http://hello.default.svc.cluster.local:8081"
    assert status["traffic"][1]["url"] == "http://old-hello.default.svc.cluster.local:8081"
