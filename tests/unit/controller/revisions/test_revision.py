"""Revisions created from a template, and the writes that reconcile them."""

from collections.abc import Sequence
from typing import Any

import pytest

from serving.controller.decide import decide
from serving.controller.revisions.revision import (
    RevisionContext,
    desired_revision,
    reconcile_revision,
    revision_debounce_s,
)
from serving.controller.revisions.revision_status import RevisionChildren, was_ready
from serving.controller.revisions.sidecar import Sidecar
from serving.controller.values.writes import DEBOUNCE_S, STARTING_S, UNSETTLED_S, UNSTARTED_S, WritePlan
from serving.core.model.knative import (
    BECAME_READY_ANNOTATION,
    REVISION_STATE_ANNOTATIONS,
    ROUTING_STATE_LABEL,
    ROUTING_STATE_MODIFIED_ANNOTATION,
    TRAFFIC_PATH_ANNOTATION,
)
from serving.core.model.objects import Object, is_controlled_by
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Delete, Patch
from tests.unit.controller.builders import (
    CREATED,
    NOW,
    NOW_S,
    SCALING,
    SETTINGS,
    a_cache,
    a_configuration,
    a_deployment,
    a_pod,
    a_revision,
    condition_values,
    merged,
    stored,
    with_ready,
    written_status,
)
from tests.unit.controller.revisions.test_sidecar import SIDECAR

CRASHED = a_pod(
    containerStatuses=[
        {"name": "app", "restartCount": 9, "state": {"waiting": {"reason": "ErrImagePull", "message": "no image"}}}
    ]
)
REFUSED = {"type": "Ready", "status": "False", "reason": "Unready", "message": "connection refused"}
GROUP = "autoscaling.knative.dev/"


def new_revision(*, scaling: AutoscalerSettings = SCALING, **template: Any) -> Object:  # noqa: ANN401 - JSON
    return desired_revision(a_configuration(**template), settings=SETTINGS, scaling=scaling, now=NOW)


def plan_for(
    revision: Object,
    *,
    children: RevisionChildren | None = None,
    scaling: AutoscalerSettings = SCALING,
    **context: Any,  # noqa: ANN401 - as RevisionContext takes them
) -> WritePlan:
    values = {"private_service": {}, **context}
    revision_children = children or RevisionChildren(deployment=a_deployment(revision, ready=1))
    return reconcile_revision(revision, RevisionContext(children=revision_children, **values), scaling=scaling, now=NOW)


def settled(revision: Object) -> Object:
    """The revision after its planned writes."""
    (plan,) = [plan_for(revision)]
    after = revision
    for write in plan.writes:
        assert isinstance(write, Patch)
        patch = {key: value for key, value in write.patch.items() if key != "metadata"}
        metadata = {key: value for key, value in write.patch["metadata"].items() if key != "resourceVersion"}
        for part, changes in {**patch, "metadata": metadata}.items():
            old = after.get(part, {})
            after = {
                **after,
                part: {
                    **old,
                    **{k: {**old.get(k, {}), **v} if k in {"labels", "annotations"} else v for k, v in changes.items()},
                },
            }
    return after


def test_revision_has_name_owner_and_labels_of_its_generation() -> None:
    configuration = a_configuration(generation=3)
    revision = desired_revision(configuration, settings=SETTINGS, scaling=SCALING, now=NOW)
    assert revision["metadata"]["name"] == "hello-00003"
    assert is_controlled_by(revision, configuration)
    assert revision["metadata"]["labels"] == {
        "serving.knative.dev/configuration": "hello",
        "serving.knative.dev/configurationUID": "uid-of-configuration-hello",
        "serving.knative.dev/configurationGeneration": "3",
        "serving.knative.dev/routingState": "pending",
        "serving.knative.dev/service": "hello",
        "serving.knative.dev/serviceUID": "uid-of-service-hello",
    }


def test_revision_without_service_has_no_service_label() -> None:
    configuration = stored(a_configuration(), labels={})
    revision = desired_revision(configuration, settings=SETTINGS, scaling=SCALING, now=NOW)
    assert "serving.knative.dev/service" not in revision["metadata"]["labels"]


def test_revision_name_of_template_is_used() -> None:
    assert new_revision(metadata={"name": "hello-blue"})["metadata"]["name"] == "hello-blue"


def test_revision_creator_is_last_modifier_of_configuration() -> None:
    configuration = stored(a_configuration(), annotations={"serving.knative.dev/lastModifier": "ann"})
    revision = desired_revision(configuration, settings=SETTINGS, scaling=SCALING, now=NOW)
    assert revision["metadata"]["annotations"]["serving.knative.dev/creator"] == "ann"


def test_state_annotations_of_exported_template_are_dropped() -> None:
    request_count = {"autoscaling.knative.dev/min-scale": "1"}
    state = dict.fromkeys(REVISION_STATE_ANNOTATIONS, "then")
    revision = new_revision(metadata={"annotations": {**request_count, **state}})
    assert revision["metadata"]["annotations"] == {**request_count, ROUTING_STATE_MODIFIED_ANNOTATION: NOW}
    assert not was_ready(revision)


def test_revision_starts_active() -> None:
    assert new_revision()["spec"]["servingState"] == "Active"


def test_revision_with_initial_scale_0_starts_in_reserve() -> None:
    scaling = AutoscalerSettings(allow_zero_initial_scale=True)
    revision = new_revision(scaling=scaling, metadata={"annotations": {GROUP + "initial-scale": "0"}})
    assert revision["spec"]["servingState"] == "Reserve"


def test_new_revision_creates_deployment_and_private_service() -> None:
    plan = plan_for(a_revision(), children=RevisionChildren(deployment=None), private_service=None)
    created_kinds = [write.body["kind"] for write in plan.writes if isinstance(write, Create)]
    assert created_kinds == ["Deployment", "Service"]
    assert plan.again_after_s == 601


def test_status_of_new_revision_is_written_after_its_children() -> None:
    revision = {key: value for key, value in a_revision().items() if key != "status"}
    cache = a_cache((kinds.REVISION, revision))
    plan = decide(cache, (kinds.REVISION, "default", "hello-00001"), now=NOW, now_s=NOW_S)
    assert {type(write) for write in plan.writes if write.kind is not kinds.REVISION} == {Create}
    assert not any(isinstance(write, Patch) and write.subresource for write in plan.writes)
    for write in plan.writes:
        if isinstance(write, Create):
            cache.put(write.kind, stored({"kind": write.kind.name, **write.body}))
        elif isinstance(write, Patch):
            metadata = {**revision["metadata"], **write.patch["metadata"]}
            cache.put(kinds.REVISION, {**revision, "metadata": metadata})
    later = decide(cache, (kinds.REVISION, "default", "hello-00001"), now=NOW, now_s=NOW_S)
    assert [write.subresource for write in later.writes if isinstance(write, Patch)] == ["status"]
    assert later.debounce_s == UNSTARTED_S


@pytest.mark.parametrize(
    ("desired", "pods", "debounce_s"),
    [
        (1, [{}], UNSTARTED_S),
        (1, [{"containerStatuses": [{"name": "user-container"}]}], STARTING_S),
        (1, [{"containerStatuses": [{}], "conditions": [REFUSED]}], UNSETTLED_S),
        (1, [{"containerStatuses": [{}], "conditions": [{"type": "Ready", "status": "True"}]}], UNSTARTED_S),
        (0, [], UNSETTLED_S),
    ],
    ids=[
        "no pod starts",
        "a pod starts",
        "a pod has a problem",
        "the Deployment does not count the pod yet",
        "no pod is wanted",
    ],
)
def test_status_debounce_of_starting_revision_depends_on_its_pods(
    desired: int, pods: list[Object], debounce_s: float
) -> None:
    revision = a_revision()
    children = RevisionChildren(
        deployment=a_deployment(revision, replicas=desired), pods=[a_pod(**status) for status in pods]
    )
    assert plan_for(revision, children=children).debounce_s == debounce_s


def test_deployment_is_created_with_initial_scale() -> None:
    revision = a_revision(metadata={"annotations": {GROUP + "initial-scale": "4"}})
    write = plan_for(revision, children=RevisionChildren(deployment=None)).writes[0]
    assert isinstance(write, Create)
    assert write.body["spec"]["replicas"] == 4


@pytest.mark.parametrize(
    ("budget", "class_name", "replicas"),
    [("5 pods", "kpa", 0), ("default=5 pods", "kpa", 0), ("elsewhere=5 pods", "kpa", 1), ("5 pods", "hpa", 1)],
)
def test_deployment_under_budget_is_created_without_pods(budget: str, class_name: str, replicas: int) -> None:
    scaling = AutoscalerSettings(budget=budget)
    revision = stored(new_revision(metadata={"annotations": {GROUP + "class": f"{class_name}.{GROUP.rstrip('/')}"}}))
    plan = plan_for(revision, children=RevisionChildren(deployment=None), scaling=scaling)
    (deployment,) = (
        write.body for write in plan.writes if isinstance(write, Create) and write.kind is kinds.DEPLOYMENT
    )
    assert deployment["spec"]["replicas"] == replicas


def test_deployment_recreated_in_reserve_has_no_replicas() -> None:
    write = plan_for(a_revision(state="Reserve"), children=RevisionChildren(deployment=None)).writes[0]
    assert isinstance(write, Create)
    assert write.body["spec"]["replicas"] == 0


def test_every_patch_has_resource_version() -> None:
    writes = plan_for(a_revision(), routes=["hello"]).writes
    assert [write.patch["metadata"]["resourceVersion"] for write in writes if isinstance(write, Patch)] == ["7", "7"]


def test_routed_revision_is_active() -> None:
    write = plan_for(a_revision(), routes=["hello"]).writes[0]
    assert isinstance(write, Patch)
    assert write.patch["metadata"]["labels"] == {ROUTING_STATE_LABEL: "active"}
    assert write.patch["metadata"]["annotations"][BECAME_READY_ANNOTATION] == NOW


def test_first_readiness_is_annotated_on_cluster_when_status_loses_it() -> None:
    configuration = a_configuration()
    first = stored(desired_revision(configuration, settings=SETTINGS, scaling=SCALING, now=NOW, routes=["hello"]))

    def annotations(revision: Object, ready_count: int, sidecar: Sidecar | None) -> list[Object]:
        children = RevisionChildren(
            deployment=a_deployment(revision, ready=ready_count), pods=[] if ready_count else [CRASHED]
        )
        context = RevisionContext(children=children, private_service={}, routes=["hello"])
        plan = reconcile_revision(revision, context, scaling=SCALING, now=NOW, sidecar=sidecar)
        patches = (write.patch for write in plan.writes if isinstance(write, Patch))
        return [patch["metadata"]["annotations"] for patch in patches if "annotations" in patch["metadata"]]

    assert annotations(first, 1, SIDECAR) == []
    assert annotations(first, 1, None) == [{BECAME_READY_ANNOTATION: NOW}]
    served = with_ready(first, "True")
    assert annotations(served, 1, SIDECAR) == []
    assert annotations(served, 0, SIDECAR) == [{BECAME_READY_ANNOTATION: CREATED}]


def test_settled_revision_plans_no_writes() -> None:
    after = settled(a_revision())
    assert plan_for(after) == WritePlan()


def test_terminating_revision_plans_no_writes() -> None:
    assert plan_for(stored(a_revision(), deletionTimestamp=NOW)) == WritePlan()


def test_retired_revision_is_deleted_with_uid_and_version() -> None:
    (write,) = plan_for(a_revision(state="Retired")).writes
    assert isinstance(write, Delete)
    assert (write.name, write.uid, write.resource_version) == ("hello-00001", "uid-of-revision-hello-00001", "7")


def test_routed_retired_revision_is_not_deleted() -> None:
    writes = plan_for(a_revision(state="Retired"), routes=["hello"]).writes
    assert not [write for write in writes if isinstance(write, Delete)]


def test_only_pod_count_changes_are_debounced() -> None:
    after = carried_out(a_revision(), waking(a_revision(), desired=1, ready=1))
    more = waking(after, desired=2, ready=2)
    assert (len(more.writes), more.debounce_s) == (1, 1.0)
    assert waking(a_revision(), desired=1, ready=1).debounce_s == 0.0
    assert waking(in_state(after, "Reserve"), desired=0, ready=0).debounce_s == 0.0


def test_scale_only_change_is_marked() -> None:
    first = waking(a_revision(), desired=1, ready=1, is_settled=True)
    after = carried_out(a_revision(), first)
    rest = waking(in_state(after, "Reserve"), desired=0, ready=0, is_settled=True)
    more, same = (waking(after, desired=count, ready=count, is_settled=True) for count in (2, 1))
    unsettled = waking(after, desired=2, ready=2)
    assert [plan.is_scale for plan in (first, rest, more, same, unsettled)] == [False, True, True, False, False]


def test_server_rejection_is_reported_and_not_retried() -> None:
    plan = plan_for(a_revision(), children=RevisionChildren(deployment=None), refusal="no such quantity")
    assert not [write for write in plan.writes if isinstance(write, Create)]
    assert plan.notes[0].message == "no such quantity"


def test_recovery_is_reported_as_event() -> None:
    assert plan_for(a_revision()).notes == (), "an annotation and an Event of the Service report the first readiness"
    (note,) = plan_for(with_ready(a_revision(), "False")).notes
    assert (note.reason, note.warning) == ("RevisionReady", False)


def test_failure_is_reported_once_as_event() -> None:
    status = {"name": "user-container", "state": {"terminated": {"exitCode": 1, "message": "boom"}}}
    revision = a_revision()
    children = RevisionChildren(deployment=a_deployment(revision), pods=[a_pod(containerStatuses=[status])])
    (note,) = plan_for(revision, children=children).notes
    assert (note.reason, note.message, note.warning) == ("ExitCode1", "Container failed with: boom", True)
    failed = with_ready(revision, "False", message="Container failed with: boom")
    assert plan_for(failed, children=children).notes == ()


def waking(revision: Object, *, desired: int, ready: int, **context: Any) -> WritePlan:  # noqa: ANN401 - as plan_for
    children = RevisionChildren(deployment=a_deployment(revision, replicas=desired, ready=ready))
    return plan_for(revision, children=children, routes=["hello"], count_period_s=1.0, **context)


def carried_out(revision: Object, plan: WritePlan) -> Object:
    for write in plan.writes:
        assert isinstance(write, Patch)
        revision = merged(revision, write.patch)
    return revision


def in_state(revision: Object, state: str) -> Object:
    return {**revision, "spec": {**revision["spec"], "servingState": state}}


def test_waking_revision_writes_status_once_pods_are_ready() -> None:
    awake = carried_out(a_revision(), waking(a_revision(), desired=1, ready=1))
    asleep = carried_out(in_state(awake, "Reserve"), waking(in_state(awake, "Reserve"), desired=0, ready=0))
    woken = in_state(asleep, "Active")
    assert [waking(woken, desired=count, ready=0).debounce_s for count in (0, 1)] == [1.0, 1.0]
    plan = waking(woken, desired=1, ready=1)
    assert (len(plan.writes), plan.debounce_s) == (1, 0.0)
    after = carried_out(woken, plan)
    falling = in_state(after, "Reserve")
    assert [waking(falling, desired=count, ready=1).debounce_s for count in (1, 0)] == [1.0, 1.0]
    plan = waking(falling, desired=0, ready=0)
    assert (len(plan.writes), plan.debounce_s) == (1, 0.0)


def test_awaited_revision_reports_missing_pods_without_debounce() -> None:
    def plan(revision: Object, *, ready: int) -> WritePlan:
        children = RevisionChildren(deployment=a_deployment(revision, replicas=1, ready=ready))
        return plan_for(revision, children=children, is_newest=True, is_awaited=True, count_period_s=1.0)

    pending = carried_out(a_revision(), plan(a_revision(), ready=1))
    unready = plan(pending, ready=0)
    assert (len(unready.writes), unready.debounce_s) == (1, 0.0)


def test_failure_status_is_not_debounced() -> None:
    revision = settled(a_revision())
    pod = a_pod(
        containerStatuses=[{"name": "user-container", "state": {"terminated": {"exitCode": 1}}, "restartCount": 3}]
    )
    children = RevisionChildren(deployment=a_deployment(revision, ready=0), pods=[pod])
    plan = plan_for(revision, children=children, routes=["hello"], count_period_s=1.0)
    assert condition_values(written_status(plan, kinds.REVISION), "Ready")[0] == "False"
    assert plan.debounce_s == 0.0


def test_debounce_of_waking_or_resting_revision_depends_on_its_pods() -> None:
    changed = (kinds.REVISION, kinds.DEPLOYMENT, kinds.POD)

    def waits_s(revision: Object, *, ready: int = 1, conditions: Sequence[Object] = ()) -> list[float]:
        deployment = a_deployment(revision, replicas=1, ready=ready)
        deployment["status"]["conditions"] = list(conditions)
        return [revision_debounce_s(revision, deployment, kind, count_period_s=1.0) for kind in changed]

    pending = with_ready(a_revision(state="Active"), "True")
    ready = merged(pending, {"metadata": {"labels": {ROUTING_STATE_LABEL: "active"}}})
    active = {**ready, "status": {"conditions": [*ready["status"]["conditions"], {"type": "Active", "status": "True"}]}}
    served = {**active, "metadata": {**active["metadata"], "annotations": {TRAFFIC_PATH_ANNOTATION: "serve"}}}
    resting = in_state(active, "Reserve")
    at_zero = {
        **resting,
        "status": {"conditions": [*ready["status"]["conditions"], {"type": "Active", "status": "False"}]},
    }
    waking = in_state(at_zero, "Active")
    refused = {"type": "ReplicaFailure", "status": "True"}
    assert waits_s(a_revision()) == [0.0, DEBOUNCE_S, DEBOUNCE_S]
    assert waits_s(with_ready(a_revision(), "Unknown")) == [DEBOUNCE_S] * 3
    assert waits_s(active) == [DEBOUNCE_S, 1.0, 1.0]
    assert waits_s(active, ready=0) == [DEBOUNCE_S, 1.0, 1.0]
    assert waits_s(resting) == [5.0, 5.0, 1.0]
    assert waits_s(resting, ready=0) == [1.0, 1.0, 1.0]
    assert waits_s(waking, ready=0) == [5.0, 5.0, 1.0]
    assert waits_s(waking, ready=0, conditions=[refused]) == [1.0, 1.0, 1.0]
    assert waits_s(waking) == [1.0, 1.0, 1.0]
    assert waits_s(served) == [DEBOUNCE_S] * 3
    assert waits_s(pending) == [DEBOUNCE_S] * 3
