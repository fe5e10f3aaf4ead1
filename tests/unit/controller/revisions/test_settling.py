"""When traffic moves to a new revision, and when it returns to the older one."""

import datetime as dt

import pytest

from serving.controller.revisions.configuration import reconcile_configuration
from serving.controller.revisions.settling import LatestReady, is_settled, latest_ready_of
from serving.controller.values.writes import WritePlan
from serving.core.model.event import GIVEN_BACK_REASON
from serving.core.model.knative import BECAME_READY_ANNOTATION
from serving.core.model.objects import Object, condition_of, timestamp_s
from serving.core.settings.controller import FROM_START, ControllerSettings
from serving.net.cluster import kinds
from tests.unit.controller.builders import (
    CREATED,
    SCALING,
    a_configuration,
    a_revision,
    condition_values,
    merged,
    written_status,
)

CREATED_S = timestamp_s(CREATED) or 0.0


def stamp(after_s: float) -> str:
    return dt.datetime.fromtimestamp(CREATED_S + after_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def revision(
    generation: int,
    status: str = "True",
    *,
    at_s: float = 0.0,
    restarted_s: float | None = None,
    traffic_s: float | None = None,
) -> Object:
    """A revision whose Ready changed ``at_s`` seconds after its creation, and which got traffic at ``traffic_s``."""
    conditions = [{"type": "Ready", "status": status, "message": "boom", "lastTransitionTime": stamp(at_s)}]
    if restarted_s is not None:
        conditions.append({"type": "Restarted", "status": "True", "lastTransitionTime": stamp(restarted_s)})
    annotations = {} if traffic_s is None else {BECAME_READY_ANNOTATION: stamp(traffic_s)}
    result = merged(a_revision(generation=generation), {"metadata": {"annotations": annotations}})
    return {**result, "status": {"conditions": conditions}}


def latest(present: Object | None, *others: Object, now_s: float, settle_time_s: float = FROM_START) -> LatestReady:
    usable = [*others] if present is None else [present, *others]
    return latest_ready_of(
        present, usable, others[-1] if others else present, settle_time_s=settle_time_s, now_s=CREATED_S + now_s
    )


OLD = revision(1, traffic_s=0.0)


def test_first_revision_gets_traffic_immediately() -> None:
    assert latest(None, revision(1), now_s=0.0) == LatestReady(name="hello-00001")
    assert latest(None, revision(1, "Unknown"), now_s=0.0) == LatestReady(name="")


@pytest.mark.parametrize(
    ("started_s", "settle_time_s", "moves_s"), [(0.0, -1, 2.0), (4.0, -1, 9.0), (40.0, -1, 51.0), (4.0, 20, 25.0)]
)
def test_new_revision_gets_traffic_after_settle_time(started_s: float, settle_time_s: float, moves_s: float) -> None:
    """By default its start time, from 1 to 10 s; one second more, because timestamps are whole seconds."""
    new = revision(2, at_s=started_s)
    waiting = latest(OLD, new, now_s=moves_s - 0.5, settle_time_s=settle_time_s)
    assert waiting == LatestReady(name="hello-00001", settling="hello-00002", settles_in_s=0.5)
    assert latest(OLD, new, now_s=moves_s, settle_time_s=settle_time_s) == LatestReady(name="hello-00002")


def test_restart_resets_settle_time() -> None:
    new = revision(2, restarted_s=3.0)
    assert latest(OLD, new, now_s=4.5).name == "hello-00001"
    assert latest(OLD, new, now_s=5.0).name == "hello-00002"


def test_revision_without_ready_pods_does_not_settle() -> None:
    down = merged(revision(2, restarted_s=3.0), {"status": {"desiredReplicas": 1, "actualReplicas": 0}})
    assert latest(OLD, down, now_s=60.0) == LatestReady(name="hello-00001", settling="hello-00002")
    assert latest(OLD, down, now_s=60.0, settle_time_s=0).name == "hello-00002"
    up = merged(down, {"status": {"actualReplicas": 1}})
    up["status"]["conditions"].append({"type": "Active", "status": "True", "lastTransitionTime": stamp(7.0)})
    assert latest(OLD, up, now_s=8.5).name == "hello-00001"
    assert latest(OLD, up, now_s=9.0).name == "hello-00002"


def test_settle_time_0_moves_traffic_at_once_and_never_back() -> None:
    assert latest(OLD, revision(2), now_s=0.0, settle_time_s=0).name == "hello-00002"
    failed = revision(2, "False", at_s=5.0, traffic_s=1.0)
    latest_ready = latest_ready_of(failed, [OLD, failed], failed, settle_time_s=0, now_s=CREATED_S + 5)
    assert latest_ready == LatestReady(name="hello-00002")


def test_revision_without_transition_times_is_settled() -> None:
    new = {**revision(2), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert latest(OLD, new, now_s=0.0).name == "hello-00002"


def test_failing_present_revision_skips_settle_time() -> None:
    assert latest(revision(1, "False", at_s=100.0, traffic_s=0.0), revision(2), now_s=0.0).name == "hello-00002"


@pytest.mark.parametrize(("failed_s", "name"), [(61.0, "hello-00001"), (62.0, "hello-00002")])
def test_revision_that_fails_in_first_minute_returns_traffic(failed_s: float, name: str) -> None:
    failed = revision(2, "False", at_s=failed_s, traffic_s=1.0)
    latest_ready = latest_ready_of(failed, [OLD, failed], failed, settle_time_s=FROM_START, now_s=CREATED_S + failed_s)
    assert (latest_ready.name, latest_ready.failed) == (name, failed if name == "hello-00001" else None)


@pytest.mark.parametrize(
    "others", [[], [revision(1, "False", traffic_s=0.0)], [revision(1, "Unknown")], [revision(3, "Unknown")]]
)
def test_traffic_is_not_returned_to_unready_revisions(others: list[Object]) -> None:
    failed = revision(2, "False", at_s=5.0, traffic_s=1.0)
    latest_ready = latest_ready_of(failed, [*others, failed], failed, settle_time_s=FROM_START, now_s=CREATED_S + 5)
    assert latest_ready == LatestReady(name="hello-00002")


def test_failed_revision_without_traffic_time_retains_traffic() -> None:
    failed = revision(2, "False", at_s=5.0)
    latest_ready = latest_ready_of(failed, [OLD, failed], failed, settle_time_s=FROM_START, now_s=CREATED_S + 5)
    assert latest_ready == LatestReady(name="hello-00002")


def test_revision_that_returned_traffic_settles_for_a_minute() -> None:
    again = revision(2, at_s=10.0, traffic_s=1.0)
    for now_s, name in ((70.0, "hello-00001"), (71.0, "hello-00002")):
        latest_ready = latest_ready_of(
            OLD, [OLD, again], again, settle_time_s=FROM_START, now_s=CREATED_S + now_s, gave_back=True
        )
        assert latest_ready.name == name


def test_routed_revision_settles_in_default_time() -> None:
    assert latest(OLD, revision(2, traffic_s=0.5), now_s=2.0).name == "hello-00002"


def test_older_revision_settles_again_after_return_of_its_template() -> None:
    present = revision(2, traffic_s=5.0)
    assert latest(present, OLD, now_s=2.0).name == "hello-00001"


def test_ready_revision_is_chosen_over_newer_failed_revision() -> None:
    latest_ready = latest_ready_of(
        OLD,
        [OLD, revision(2), revision(3, "False")],
        revision(3, "False"),
        settle_time_s=FROM_START,
        now_s=CREATED_S + 9,
    )
    assert latest_ready.name == "hello-00002"


def new_plan(now_s: float, status: Object, *revisions: Object) -> WritePlan:
    configuration = {**a_configuration(generation=2), "status": status}
    known = {resource["metadata"]["name"]: resource for resource in revisions}
    return reconcile_configuration(
        configuration, known, settings=ControllerSettings(), scaling=SCALING, now=stamp(now_s)
    )


def test_configuration_reports_settling_revision() -> None:
    names = {"latestCreatedRevisionName": "hello-00002", "latestReadyRevisionName": "hello-00001"}
    plan = new_plan(1.0, names, OLD, revision(2))
    assert plan.again_after_s == 1.0
    assert condition_values(written_status(plan, kinds.CONFIGURATION), "Ready") == (
        "Unknown",
        "RevisionSettling",
        'Revision "hello-00002" is ready, and takes the traffic if it stays so.',
    )
    down = new_plan(2.0, names, OLD, merged(revision(2), {"status": {"desiredReplicas": 1}}))
    assert down.again_after_s is None
    assert condition_values(written_status(down, kinds.CONFIGURATION), "Ready")[2] == (
        'Revision "hello-00002" was ready, and takes the traffic after its pods are ready again.'
    )
    settled = new_plan(2.0, names, OLD, revision(2))
    assert written_status(settled, kinds.CONFIGURATION)["latestReadyRevisionName"] == "hello-00002"
    assert settled.again_after_s is None


def test_configuration_remains_failed_until_revision_settles() -> None:
    # A container that keeps exiting is ready between two exits.
    names = {"latestCreatedRevisionName": "hello-00002", "latestReadyRevisionName": "hello-00001"}
    failed = written_status(new_plan(1.0, names, OLD, revision(2, "False", at_s=1.0)), kinds.CONFIGURATION)
    assert condition_values(failed, "Ready") == (
        "False",
        "RevisionFailed",
        'Revision "hello-00002" failed with message: boom.',
    )
    status = {**names, **failed}
    between = new_plan(3.0, status, OLD, revision(2, at_s=2.0))
    assert between.again_after_s == 2.0
    assert not between.writes
    settled = new_plan(9.0, status, OLD, revision(2, at_s=2.0))
    assert condition_of({"status": written_status(settled, kinds.CONFIGURATION)}, "Ready")["status"] == "True"


def test_configuration_reports_returned_traffic_until_revision_settles() -> None:
    names = {"latestCreatedRevisionName": "hello-00002", "latestReadyRevisionName": "hello-00002"}
    failed = revision(2, "False", at_s=5.0, traffic_s=1.0)
    plan = new_plan(5.0, names, OLD, failed)
    status = written_status(plan, kinds.CONFIGURATION)
    assert status["latestReadyRevisionName"] == "hello-00001"
    text = 'Revision "hello-00002" failed within its first minute: boom. Its traffic went back to "hello-00001".'
    assert condition_values(status, GIVEN_BACK_REASON) == ("True", "RevisionFailed", text)
    (event,) = [note for note in plan.notes if note.reason == GIVEN_BACK_REASON]
    assert (event.message, event.warning) == (text, True)
    # The condition remains while the revision has no traffic, without a second Event.
    again = new_plan(6.0, status, OLD, revision(2, at_s=6.0, traffic_s=1.0))
    assert condition_values(written_status(again, kinds.CONFIGURATION), GIVEN_BACK_REASON)[2] == text
    assert GIVEN_BACK_REASON not in {note.reason for note in again.notes}
    moved = new_plan(80.0, status, OLD, revision(2, at_s=6.0, traffic_s=1.0))
    assert condition_of({"status": written_status(moved, kinds.CONFIGURATION)}, GIVEN_BACK_REASON) == {}


def test_latest_ready_revision_and_older_revisions_are_settled() -> None:
    def settled(newest: str) -> list[bool]:
        return [is_settled(revision(generation), revision(2), newest=newest) for generation in (1, 2, 3)]

    assert settled("hello-00002") == settled("hello-00003") == [True, True, False]
    assert settled("hello-00001") == [False, True, False]
    assert not is_settled(revision(1), None, newest="hello-00001")
