"""Reconciliation of a Configuration: its revisions and its status."""

from typing import Any

import msgspec
import pytest

from serving.controller.revisions.configuration import reconcile_configuration, revision_name_is_taken
from serving.controller.values.writes import UNSETTLED_S, UNSTARTED_S, WritePlan
from serving.core.model.knative import BECAME_READY_ANNOTATION, ROUTING_STATE_LABEL
from serving.core.model.objects import Object
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Patch
from tests.unit.controller.builders import (
    NOW,
    SCALING,
    SETTINGS,
    a_configuration,
    a_revision,
    condition_values,
    merged,
    stored,
    with_ready,
    written_status,
)

OTHER = {"containers": [{"image": "other"}]}
TAKEN = 'Revision creation failed with message: revisions.serving.knative.dev "{}" already exists.'


def plan_for(configuration: Object, *revisions: Object, settings: ControllerSettings = SETTINGS) -> WritePlan:
    known = {revision["metadata"]["name"]: revision for revision in revisions}
    return reconcile_configuration(configuration, known, settings=settings, scaling=SCALING, now=NOW)


def status_of(configuration: Object, *revisions: Object) -> Object:
    return written_status(plan_for(configuration, *revisions), kinds.CONFIGURATION)


def with_status(configuration: Object, **status: str) -> Object:
    return {**configuration, "status": status}


def ready(generation: int, status: str = "True", **more: str) -> Object:
    return with_ready(a_revision(generation=generation), status, **more)


def test_second_revision_is_created_with_routing_state_pending() -> None:
    configuration = a_configuration(generation=2, spec=OTHER)
    plan = reconcile_configuration(
        configuration, {"hello-00001": ready(1)}, settings=SETTINGS, scaling=SCALING, now=NOW, routes=["hello"]
    )
    (create,) = [write for write in plan.writes if isinstance(write, Create)]
    assert create.body["metadata"]["labels"][ROUTING_STATE_LABEL] == "pending"


def test_new_generation_creates_revision() -> None:
    plan = plan_for(
        with_status(a_configuration(generation=2, spec=OTHER), latestCreatedRevisionName="hello-00001"), ready(1)
    )
    (create,) = [write for write in plan.writes if isinstance(write, Create)]
    assert create.body["metadata"]["name"] == "hello-00002"
    assert plan.notes[0].message == 'Created Revision "hello-00002"'
    status = written_status(plan, kinds.CONFIGURATION)
    assert status["latestCreatedRevisionName"] == "hello-00002"
    assert condition_values(status, "Ready") == ("Unknown", "", "")


@pytest.mark.parametrize(
    ("template", "is_new"),
    [
        ({"spec": {"containers": [{"image": "app", "resources": {}, "env": []}], "volumes": []}}, False),
        ({"metadata": {"labels": {}, "annotations": {}}}, False),
        ({"metadata": {"labels": {"a": "b"}}}, True),
        ({"metadata": {"annotations": {"a": "b"}}}, True),
        ({"spec": {"containers": [{"image": "app", "env": [{"name": "A", "value": "b"}]}]}}, True),
    ],
)
def test_equivalent_template_creates_no_revision(template: Object, is_new: bool) -> None:
    before = stored(ready(1), annotations={BECAME_READY_ANNOTATION: NOW})
    configuration = with_status(a_configuration(generation=2, **template), latestCreatedRevisionName="hello-00001")
    plan = plan_for(configuration, before)
    assert any(isinstance(write, Create) for write in plan.writes) is is_new
    status = written_status(plan, kinds.CONFIGURATION)
    created = status.get("latestCreatedRevisionName", "hello-00001")
    assert (created, status["observedGeneration"]) == (f"hello-0000{1 + is_new}", 2)


@pytest.mark.parametrize("lost", [{"metadata": {"ownerReferences": []}}, {"spec": {"servingState": "Retired"}}])
def test_unowned_or_retired_revision_is_not_reused_as_latest(lost: Object) -> None:
    before = {key: {**value, **lost.get(key, {})} if key in lost else value for key, value in ready(1).items()}
    configuration = with_status(a_configuration(generation=2), latestCreatedRevisionName="hello-00001")
    assert [
        write.body["metadata"]["name"] for write in plan_for(configuration, before).writes if isinstance(write, Create)
    ]


def test_first_revision_emits_no_configuration_events() -> None:
    assert plan_for(a_configuration()).notes == ()
    assert plan_for(a_configuration(), ready(1)).notes == ()


def test_change_of_latest_ready_revision_is_reported_as_event() -> None:
    configuration = with_status(a_configuration(generation=2), latestReadyRevisionName="hello-00001")
    (note,) = plan_for(configuration, ready(1), ready(2)).notes
    assert note.message == 'LatestReadyRevisionName updated to "hello-00002"'


def test_configuration_with_ready_revision_is_ready() -> None:
    status = status_of(a_configuration(), ready(1))
    assert (status["latestReadyRevisionName"], condition_values(status, "Ready")[0]) == ("hello-00001", "True")


def test_settled_configuration_plans_no_writes() -> None:
    configuration = a_configuration()
    after = {**configuration, "status": status_of(configuration, ready(1))}
    assert plan_for(after, ready(1)) == WritePlan()


def test_terminating_configuration_plans_no_writes() -> None:
    assert plan_for(stored(a_configuration(), deletionTimestamp=NOW)) == WritePlan()


def test_failed_revision_does_not_replace_latest_ready() -> None:
    configuration = with_status(a_configuration(generation=2), latestReadyRevisionName="hello-00001")
    plan = plan_for(configuration, ready(1), ready(2, "False", message="boom"))
    status = written_status(plan, kinds.CONFIGURATION)
    assert "latestReadyRevisionName" not in status
    assert condition_values(status, "Ready") == (
        "False",
        "RevisionFailed",
        'Revision "hello-00002" failed with message: boom.',
    )
    assert [(note.reason, note.warning) for note in plan.notes] == [("LatestCreatedFailed", True)]


def test_latest_ready_revision_is_retained_when_it_fails() -> None:
    configuration = with_status(a_configuration(generation=2), latestReadyRevisionName="hello-00002")
    assert "latestReadyRevisionName" not in status_of(configuration, ready(1), ready(2, "False"))


def test_newest_ready_revision_is_latest_ready_while_newer_is_not() -> None:
    configuration = with_status(a_configuration(generation=3), latestReadyRevisionName="hello-00001")
    assert status_of(configuration, ready(1), ready(2), ready(3, "Unknown"))["latestReadyRevisionName"] == "hello-00002"


def test_lost_status_recovers_latest_ready_from_annotation() -> None:
    before = [stored(a_revision(generation=number), annotations={BECAME_READY_ANNOTATION: NOW}) for number in (1, 2)]
    status = status_of(a_configuration(generation=3), *before, a_revision(generation=3))
    assert status["latestReadyRevisionName"] == "hello-00002"


def test_deleted_latest_ready_revision_is_replaced_by_older_ready() -> None:
    configuration = with_status(a_configuration(generation=2), latestReadyRevisionName="hello-00002")
    assert status_of(configuration, ready(1))["latestReadyRevisionName"] == "hello-00001"


def test_first_status_is_debounced_until_revision_settles() -> None:
    (write,) = plan_for(a_configuration()).writes
    assert isinstance(write, Create)
    assert plan_for(a_configuration(), a_revision()).debounce_s == UNSTARTED_S
    plan = plan_for(a_configuration(), ready(1, "Unknown"))
    assert plan.debounce_s < UNSETTLED_S, "the Service repeats the name in its own first status"
    assert written_status(plan, kinds.CONFIGURATION)["latestCreatedRevisionName"] == "hello-00001"
    for condition in ("True", "False"):
        assert plan_for(a_configuration(), ready(1, condition)).debounce_s == 0.0
    assert (
        plan_for(
            with_status(a_configuration(), latestCreatedRevisionName="hello-00001"), ready(1, "Unknown")
        ).debounce_s
        == 0.0
    )


def test_latest_ready_name_is_removed_without_revisions() -> None:
    configuration = with_status(a_configuration(), latestReadyRevisionName="hello-00001")
    assert status_of(configuration)["latestReadyRevisionName"] is None


def test_retired_revision_is_not_latest_ready() -> None:
    retired = with_ready(a_revision(state="Retired"), "True")
    assert "latestReadyRevisionName" not in status_of(a_configuration(generation=2), retired, ready(2, "Unknown"))


def test_return_to_named_revision_makes_it_latest_ready_immediately() -> None:
    named: dict[str, Any] = {"metadata": {"name": "hello-blue"}}
    blue = with_ready(a_revision(generation=1, **named), "True")
    configuration = with_status(a_configuration(generation=3, **named), latestReadyRevisionName="hello-00002")
    plan = plan_for(configuration, blue, ready(2))
    assert not [write for write in plan.writes if isinstance(write, Create)]
    assert written_status(plan, kinds.CONFIGURATION)["latestReadyRevisionName"] == "hello-blue"


def test_revision_name_with_different_content_is_rejected() -> None:
    named: dict[str, Any] = {"metadata": {"name": "hello-blue"}}
    configuration = a_configuration(generation=2, spec=OTHER, **named)
    plan = plan_for(configuration, a_revision(generation=1, **named))
    status = written_status(plan, kinds.CONFIGURATION)
    assert condition_values(status, "Ready") == ("False", "RevisionFailed", TAKEN.format("hello-blue"))
    assert "latestCreatedRevisionName" not in status
    assert [note.reason for note in plan.notes] == ["CreationFailed"]


@pytest.mark.parametrize("template", [{"metadata": {"name": "hello-00001"}}, {}])
def test_revision_of_another_owner_is_not_adopted(template: dict[str, Any]) -> None:
    status = status_of(a_configuration(**template), stored(a_revision(), ownerReferences=[]))
    assert condition_values(status, "Ready")[2] == TAKEN.format("hello-00001")


def test_unused_revision_name_is_not_taken() -> None:
    configuration = a_configuration(metadata={"name": "hello-blue"})
    assert not revision_name_is_taken(configuration, {}, SETTINGS)
    assert not revision_name_is_taken(a_configuration(), {}, SETTINGS)


def test_invalid_autoscaling_annotation_is_rejected_with_cause() -> None:
    metadata = {"annotations": {"autoscaling.knative.dev/min-scale": "few"}}
    status = status_of(a_configuration(metadata=metadata))
    assert condition_values(status, "Ready")[1] == "RevisionFailed"
    assert "autoscaling.knative.dev/min-scale: 'few' is not right" in condition_values(status, "Ready")[2]


def test_misspelt_template_label_is_rejected_with_suggestion() -> None:
    status = status_of(a_configuration(metadata={"labels": {"networking.knative.dev/visibilty": "cluster-local"}}))
    assert condition_values(status, "Ready")[1] == "RevisionFailed"
    assert "did you mean networking.knative.dev/visibility?" in condition_values(status, "Ready")[2]


def test_server_rejection_is_reported_and_not_retried() -> None:
    plan = reconcile_configuration(
        a_configuration(), {}, settings=SETTINGS, scaling=SCALING, now=NOW, refusal="containers: too many"
    )
    assert not [write for write in plan.writes if isinstance(write, Create)]
    status = written_status(plan, kinds.CONFIGURATION)
    assert condition_values(status, "Ready")[2] == "Revision creation failed with message: containers: too many."


def test_timeout_above_maximum_creates_no_revision() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_revision_timeout_s=600)
    spec = {"containers": [{"image": "app"}], "timeoutSeconds": 601}
    plan = plan_for(a_configuration(spec=spec), settings=settings)
    assert not [write for write in plan.writes if isinstance(write, Create)]


def test_non_numeric_generation_label_is_oldest() -> None:
    odd = with_ready(stored(a_revision(), labels={"serving.knative.dev/configurationGeneration": "x"}), "True")
    configuration = with_status(a_configuration(generation=2), latestReadyRevisionName="gone")
    status = status_of(configuration, {**odd, "metadata": {**odd["metadata"], "name": "odd"}}, ready(1))
    assert status["latestReadyRevisionName"] == "hello-00001"


def test_collectable_revision_is_retired() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_non_active_revisions=0, min_non_active_revisions=0)
    labels = {**a_revision()["metadata"]["labels"], ROUTING_STATE_LABEL: "reserve"}
    old = stored(ready(1), labels=labels)
    plan = plan_for(a_configuration(generation=2), old, ready(2), settings=settings)
    (patch,) = [write for write in plan.writes if isinstance(write, Patch) and write.kind is kinds.REVISION]
    assert merged(old, patch.patch)["spec"]["servingState"] == "Retired"
    assert patch.patch["metadata"] == {"resourceVersion": "7"}
