"""The status of a revision."""

from typing import Any

import pytest

from serving.controller.revisions.revision_status import (
    Failure,
    HealthLayer,
    RevisionChildren,
    StartScale,
    desired_status,
    failure_of,
    failure_to_keep,
    not_ready_because,
    serving_state_of,
    start_scale,
    was_ready,
)
from serving.core.model.knative import (
    BECAME_READY_ANNOTATION,
    CONDITION_LISTENS,
    FAILURE_ANNOTATION,
    POLICY_FAILURE_ANNOTATION,
    SHORTAGE_ANNOTATION,
)
from serving.core.model.objects import Object, condition_of
from serving.core.settings.autoscaler import AutoscalerSettings
from tests.unit.controller.builders import NOW, a_deployment, a_pod, a_revision, condition_values, stored, with_ready

ONE = StartScale(start_count=1, min_count=0, progress_deadline_s=600)
BOOM = {"name": "user-container", "state": {"terminated": {"exitCode": 1, "message": "boom"}}}
QUEUED = "Requests to the target are being buffered as resources are provisioned."

GROUP = "autoscaling.knative.dev/"


def status_of(
    revision: Object, deployment: Object | None, *pods: Object, scale: StartScale = ONE, now: str = NOW
) -> Object:
    return desired_status(revision, RevisionChildren(deployment=deployment, pods=pods), scale, now=now)


def deploying(**status: Any) -> Object:  # noqa: ANN401 - JSON
    return a_deployment(a_revision(), **status)


def test_a_revision_without_a_deployment_is_deploying() -> None:
    status = status_of(a_revision(), None)
    assert [
        condition_values(status, condition_type)
        for condition_type in ("Ready", "ResourcesAvailable", "ContainerHealthy", "Active")
    ] == [("Unknown", "Deploying", "")] * 4
    assert (status["actualReplicas"], status["desiredReplicas"], status["observedGeneration"]) == (0, 1, 1)


def test_a_revision_in_reserve_without_a_deployment_wants_no_pod() -> None:
    assert status_of(a_revision(state="Reserve"), None)["desiredReplicas"] == 0


def test_a_revision_with_a_ready_pod_is_ready_and_active() -> None:
    status = status_of(a_revision(), deploying(ready=1))
    assert [
        condition_values(status, condition_type)[0]
        for condition_type in ("Ready", "ResourcesAvailable", "ContainerHealthy", "Active")
    ] == ["True"] * 4
    assert (status["actualReplicas"], status["desiredReplicas"]) == (1, 1)


def test_a_budget_that_is_too_small_is_a_condition_that_readiness_does_not_depend_on() -> None:
    assert condition_of(status_of(a_revision(), deploying(ready=1)), "WithinBudget") == {}
    revision = a_revision()
    revision["metadata"]["annotations"] = {SHORTAGE_ANNOTATION: "the budget of 5 pods is too small"}
    status = status_of(revision, deploying(ready=1))
    assert condition_values(status, "WithinBudget") == ("False", "BudgetTooSmall", "the budget of 5 pods is too small")
    assert condition_values(status, "Ready")[0] == "True"


def test_a_policy_that_fails_is_a_condition_that_readiness_does_not_depend_on() -> None:
    assert condition_of(status_of(a_revision(), deploying(ready=1)), "PolicyInForce") == {}
    revision = a_revision()
    revision["metadata"]["annotations"] = {POLICY_FAILURE_ANNOTATION: "there is no policy mine here"}
    status = status_of(revision, deploying(ready=1))
    assert condition_values(status, "PolicyInForce") == ("False", "PolicyFailed", "there is no policy mine here")
    assert condition_values(status, "Ready")[0] == "True"


def test_pods_that_come_up_are_waited_for() -> None:
    status = status_of(a_revision(), deploying(), a_pod())
    assert condition_values(status, "Ready") == ("Unknown", "Deploying", "")
    assert condition_values(status, "Active") == ("Unknown", "Deploying", "")


@pytest.mark.parametrize(("ready", "ready_status"), [(2, "Unknown"), (3, "True")])
def test_all_initial_pods_must_have_been_ready(ready: int, ready_status: str) -> None:
    scale = StartScale(start_count=3, min_count=0, progress_deadline_s=600)
    status = status_of(a_revision(), deploying(replicas=3, ready=ready), scale=scale)
    assert condition_values(status, "Ready")[0] == ready_status


def test_a_revision_below_its_min_scale_is_not_yet_active() -> None:
    scale = StartScale(start_count=3, min_count=3, progress_deadline_s=600)
    status = status_of(with_ready(a_revision(), "True"), deploying(replicas=3, ready=1), scale=scale)
    assert (condition_values(status, "Ready")[0], condition_values(status, "Active")[:2]) == (
        "True",
        ("Unknown", "Queued"),
    )


def test_a_new_revision_that_exits_has_failed() -> None:
    status = status_of(a_revision(), deploying(), a_pod(containerStatuses=[BOOM]))
    assert condition_values(status, "ContainerHealthy") == ("False", "ExitCode1", "Container failed with: boom")
    assert condition_values(status, "Ready") == ("False", "ExitCode1", "Container failed with: boom")
    assert condition_values(status, "ResourcesAvailable") == ("Unknown", "ExitCode1", "")


def test_one_ready_pod_shows_that_pods_can_be() -> None:
    scale = StartScale(start_count=2, min_count=0, progress_deadline_s=600)
    status = status_of(a_revision(), deploying(replicas=2, ready=1), a_pod(containerStatuses=[BOOM]), scale=scale)
    assert condition_values(status, "Ready") == ("Unknown", "Deploying", "")


def test_one_exit_of_what_has_worked_is_no_failure() -> None:
    revision = with_ready(a_revision(), "True")
    status = status_of(revision, deploying(), a_pod(containerStatuses=[BOOM]))
    assert (condition_values(status, "Ready")[0], condition_values(status, "Active")[:2]) == (
        "True",
        ("Unknown", "Queued"),
    )


def test_a_crash_loop_of_what_has_worked_is_a_failure() -> None:
    revision = with_ready(a_revision(), "True")
    status = status_of(revision, deploying(), a_pod(containerStatuses=[{**BOOM, "restartCount": 3}]))
    assert condition_values(status, "Ready") == ("False", "ExitCode1", "Container failed with: boom")


@pytest.mark.parametrize(
    ("message", "is_ready"),
    [
        ("ended with exit code 1; starts again in 1 s", "True"),
        ("ended with exit code 1; starts again in 2 s", "False"),
        ("back-off 10s restarting failed container", "False"),
        ("", "False"),
    ],
)
def test_a_short_pause_before_a_restart_is_waited_for(message: str, is_ready: str) -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": message}
    container = {"name": "user-container", "restartCount": 1, "state": {"waiting": waiting}}
    container["lastState"] = {"terminated": {"exitCode": 1, "message": "boom"}}
    status = status_of(with_ready(a_revision(), "True"), deploying(), a_pod(containerStatuses=[container]))
    assert condition_values(status, "Ready")[0] == is_ready
    assert condition_values(status, "Restarted") == ("True", "", "containers of its pods have ended 2 times")


def test_the_reason_for_missing_pods_is_reported() -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}
    other = {"type": "Available", "status": "False"}
    status = status_of(a_revision(), deploying(conditions=[other, failed]))
    assert condition_values(status, "ResourcesAvailable") == ("False", "FailedCreate", "quota")
    assert condition_values(status, "ContainerHealthy") == ("Unknown", "FailedCreate", "")


def test_a_deployment_of_another_owner_is_reported() -> None:
    status = status_of(a_revision(), stored(deploying(ready=1), ownerReferences=[]))
    message = 'There is an existing Deployment "hello-00001-deployment" that we do not own.'
    assert condition_values(status, "ResourcesAvailable") == ("False", "NotOwned", message)


@pytest.mark.parametrize(
    ("now", "ready_status"), [("2026-11-21T04:10:00Z", "Unknown"), ("2026-11-21T04:10:01Z", "False")]
)
def test_the_time_to_start_is_over_after_the_deadline(now: str, ready_status: str) -> None:
    assert condition_values(status_of(a_revision(), deploying(), now=now), "Ready")[0] == ready_status


def test_what_is_late_says_what_it_waited_for() -> None:
    probe = {"type": "Ready", "status": "False", "reason": "ProbeFailed", "message": "connection refused"}
    late = status_of(a_revision(), deploying(), a_pod(conditions=[probe]), now="2026-11-21T05:00:00Z")
    assert condition_values(late, "Ready") == ("False", "ProgressDeadlineExceeded", "connection refused")
    silent = status_of(a_revision(), deploying(), now="2026-11-21T05:00:00Z")
    assert condition_values(silent, "Ready")[2] == "no pod was ready within 600 s"


def test_the_deployments_own_deadline_counts() -> None:
    progressing = {
        "type": "Progressing",
        "status": "False",
        "reason": "ProgressDeadlineExceeded",
        "message": "timed out",
    }
    status = status_of(a_revision(), deploying(conditions=[progressing]))
    assert condition_values(status, "ResourcesAvailable") == ("False", "ProgressDeadlineExceeded", "timed out")


def test_a_deployment_without_a_time_is_never_late() -> None:
    status = status_of(a_revision(), stored(deploying(), creationTimestamp=None), now="2027-11-21T05:00:00Z")
    assert condition_values(status, "Ready")[0] == "Unknown"


def test_a_revision_at_zero_is_ready_and_not_active() -> None:
    revision = with_ready(a_revision(state="Reserve"), "True")
    status = status_of(revision, deploying(replicas=0))
    assert condition_values(status, "Ready")[0] == "True"
    assert condition_values(status, "Active") == ("False", "NoTraffic", "The target is not receiving traffic.")


def test_active_is_information() -> None:
    status = status_of(a_revision(), deploying(ready=1))
    assert [condition.get("severity") for condition in status["conditions"]] == ["Info", None, None, None]


def test_a_waking_revision_is_ready_and_queues() -> None:
    revision = with_ready(a_revision(state="Active"), "True")
    status = status_of(revision, deploying(replicas=0))
    assert (condition_values(status, "Ready")[0], condition_values(status, "Active")) == (
        "True",
        ("Unknown", "Queued", QUEUED),
    )


def test_pods_that_are_still_there_after_the_decision_for_zero_change_nothing() -> None:
    revision = with_ready(a_revision(state="Reserve"), "True")
    assert condition_values(status_of(revision, deploying(replicas=0, ready=1)), "Active")[0] == "False"


def test_a_revision_that_needs_no_pod_is_ready_immediately() -> None:
    scale = StartScale(start_count=0, min_count=0, progress_deadline_s=600)
    assert (
        condition_values(status_of(a_revision(state="Reserve"), deploying(replicas=0), scale=scale), "Ready")[0]
        == "True"
    )


def test_a_revision_that_was_given_up_before_it_was_ready_has_failed() -> None:
    status = status_of(a_revision(state="Reserve"), deploying(replicas=0))
    assert condition_values(status, "Ready") == (
        "False",
        "ProgressDeadlineExceeded",
        "Initial scale was never achieved",
    )


def test_a_revision_that_was_given_up_keeps_saying_why() -> None:
    failed = {**a_revision(), "status": status_of(a_revision(), deploying(), a_pod(containerStatuses=[BOOM]))}
    given_up = {**failed, "spec": {**failed["spec"], "servingState": "Reserve"}}
    status = status_of(given_up, deploying(replicas=0))
    assert condition_values(status, "ContainerHealthy") == ("False", "ExitCode1", "Container failed with: boom")


def test_why_a_revision_was_given_up_survives_the_loss_of_its_status() -> None:
    failed = {**a_revision(), "status": status_of(a_revision(), deploying(), a_pod(containerStatuses=[BOOM]))}
    # An active one shows its pods.
    assert failure_to_keep(failed) == ""
    failure = failure_to_keep({**failed, "spec": {**failed["spec"], "servingState": "Reserve"}})
    restarted = stored(a_revision(state="Reserve"), annotations={FAILURE_ANNOTATION: failure})
    status = status_of(restarted, deploying(replicas=0))
    assert condition_values(status, "ContainerHealthy") == ("False", "ExitCode1", "Container failed with: boom")
    assert failure_to_keep({**restarted, "status": status}) == failure


@pytest.mark.parametrize("text", ["", "boom", "[]", '{"layer": "Other", "reason": "", "message": ""}'])
def test_an_annotation_that_is_no_failure_says_nothing(text: str) -> None:
    revision = stored(a_revision(state="Reserve"), annotations={FAILURE_ANNOTATION: text})
    status = status_of(revision, deploying(replicas=0))
    assert condition_values(status, "Ready")[2] == "Initial scale was never achieved"
    assert failure_to_keep({**revision, "status": status}) == ""


def test_a_revision_that_became_ready_keeps_no_failure() -> None:
    note = '{"layer": "ContainerHealthy", "reason": "ExitCode1", "message": "boom"}'
    revision = stored(a_revision(state="Reserve"), annotations={FAILURE_ANNOTATION: note, BECAME_READY_ANNOTATION: NOW})
    assert failure_to_keep(revision) == ""


def test_a_retired_revision_says_so() -> None:
    revision = with_ready(a_revision(state="Retired"), "True")
    assert condition_values(status_of(revision, deploying(replicas=0)), "Active")[:2] == ("False", "Retired")


@pytest.mark.parametrize("annotation", [BECAME_READY_ANNOTATION, "serving.dev/became-ready"])
def test_metadata_knows_of_readiness_where_status_is_lost(annotation: str) -> None:
    revision = stored(a_revision(state="Reserve"), annotations={annotation: NOW})
    assert was_ready(revision)
    assert condition_values(status_of(revision, deploying(replicas=0)), "Ready")[0] == "True"


def test_times_of_conditions_stay_while_nothing_changes() -> None:
    first = status_of(a_revision(), deploying(ready=1), now="then")
    again = status_of({**a_revision(), "status": first}, deploying(ready=1), now="now")
    assert again == first


def test_the_state_is_active_where_it_is_not_said() -> None:
    assert serving_state_of({}) == "Active"


def running(name: str, image_id: str) -> Object:
    return {"name": name, "imageID": image_id, "state": {"running": {}}}


def test_the_digests_are_those_that_the_first_pod_runs_and_stay() -> None:
    revision = a_revision(spec={"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]})
    pod = a_pod(
        containerStatuses=[running("a", "docker-pullable://r/a@sha256:1"), running("queue-proxy", "q@sha256:3")],
        initContainerStatuses=[running("i", "r/i@sha256:2")],
    )
    status = status_of(revision, deploying(ready=1), a_pod(), pod)
    assert status["containerStatuses"] == [{"name": "a", "imageDigest": "r/a@sha256:1"}]
    assert status["initContainerStatuses"] == [{"name": "i", "imageDigest": "r/i@sha256:2"}]
    later = status_of(
        {**revision, "status": status}, deploying(ready=1), a_pod(containerStatuses=[running("a", "x@y")])
    )
    assert later["containerStatuses"] == status["containerStatuses"]


def test_a_pod_without_digests_says_nothing_about_images() -> None:
    assert "containerStatuses" not in status_of(a_revision(), deploying(ready=1), a_pod(containerStatuses=[]))


@pytest.mark.parametrize(
    ("annotations", "start_count"),
    [
        ({}, 1),
        ({"initial-scale": "4"}, 4),
        ({"min-scale": "3"}, 3),
        ({"minScale": "3", "initial-scale": "5"}, 5),
        ({"initial-scale": "5", "max-scale": "2"}, 2),
        ({"initial-scale": "many"}, 1),
    ],
)
def test_a_revision_starts_with_what_it_asks_for(annotations: dict[str, str], start_count: int) -> None:
    request_count = {GROUP + key: value for key, value in annotations.items()}
    assert start_scale(request_count, AutoscalerSettings()).start_count == start_count


def test_without_a_limit_the_start_is_as_large_as_asked() -> None:
    settings = AutoscalerSettings(max_scale_limit=0)
    assert start_scale({GROUP + "initial-scale": "5000"}, settings).start_count == 5000


def test_settings_hold_where_a_revision_says_nothing() -> None:
    settings = AutoscalerSettings(initial_scale=0, allow_zero_initial_scale=True, min_scale=0, max_scale=7)
    new_start_scale = start_scale({}, settings)
    assert (new_start_scale.start_count, new_start_scale.min_count, new_start_scale.progress_deadline_s) == (0, 0, 600)


def test_a_revision_may_have_its_own_deadline() -> None:
    request_count = {"serving.knative.dev/progress-deadline": "30s"}
    assert start_scale(request_count, AutoscalerSettings()).progress_deadline_s == 30


def container(**status: object) -> Object:
    return {"name": "user-container", "image": "app", **status}


def exited(code: int, message: str = "", **more: object) -> Object:
    return {"terminated": {"exitCode": code, "message": message, **more}}


def failure_of_container(**status: object) -> Failure | None:
    return failure_of([a_pod(containerStatuses=[container(**status)])])


@pytest.mark.parametrize(
    ("terminated", "reason", "message"),
    [
        (exited(1, "Traceback\nboom\n"), "ExitCode1", "Container failed with: Traceback\nboom"),
        (exited(3), "ExitCode3", "Container failed with: exit code 3"),
        (exited(0), "ExitCode0", "Container failed with: container exited with no error"),
        (exited(137, reason="OOMKilled"), "ExitCode137", "Container failed with: out of memory"),
        (exited(137, "last", reason="OOMKilled"), "ExitCode137", "Container failed with: out of memory: last"),
        (
            exited(0, "livenessProbe of c failed: GET /", reason="Unhealthy"),
            "Unhealthy",
            "livenessProbe of c failed: GET /",
        ),
    ],
)
@pytest.mark.parametrize("state", ["state", "lastState"])
def test_an_exit_is_reported_with_its_last_lines(state: str, terminated: Object, reason: str, message: str) -> None:
    assert failure_of_container(**{state: terminated}) == Failure(
        layer=HealthLayer.CONTAINER, reason=reason, message=message
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "Container failed with: it exited with code 0 before it listened on $PORT"),
        (
            "bye",
            "Container failed with: it exited with code 0 before it listened on $PORT; last lines of its log:\nbye",
        ),
    ],
)
def test_an_app_that_exits_with_0_before_it_was_ready_is_explained(lines: str, message: str) -> None:
    pod = a_pod(containerStatuses=[container(lastState=exited(0, lines))])
    pod["spec"] = {"containers": [{"name": "user-container"}, {"name": "queue-proxy"}]}
    failure = failure_of([pod])
    assert failure is not None
    assert (failure.reason, failure.message) == ("ExitCode0", message)


def test_a_container_without_the_port_that_exits_with_0_need_not_listen() -> None:
    pod = a_pod(containerStatuses=[container(name="beside", lastState=exited(0))])
    pod["spec"] = {"containers": [{"name": "app", "ports": [{}]}, {"name": "beside"}]}
    failure = failure_of([pod])
    assert failure is not None
    assert failure.message == "Container failed with: container exited with no error"


def test_a_crash_loop_is_reported_by_its_last_exit() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    failure = failure_of_container(state=waiting, lastState=exited(2, "boom"))
    assert failure is not None
    assert (failure.reason, failure.message) == ("ExitCode2", "Container failed with: boom")


@pytest.mark.parametrize(
    ("message", "reported"),
    [
        ("back-off 10s", "Container failed with: back-off 10s"),
        ("", "Container failed with: the container keeps exiting"),
    ],
)
def test_a_crash_loop_without_an_exit_is_one_all_the_same(message: str, reported: str) -> None:
    failure = failure_of_container(state={"waiting": {"reason": "CrashLoopBackOff", "message": message}})
    assert failure == Failure(layer=HealthLayer.CONTAINER, reason="CrashLoopBackOff", message=reported)


def test_an_image_that_cannot_be_had_is_a_missing_container() -> None:
    failure = failure_of_container(state={"waiting": {"reason": "ErrImagePull", "message": "no such image"}})
    assert failure == Failure(
        layer=HealthLayer.CONTAINER, reason="ContainerMissing", message='Unable to fetch image "app": no such image'
    )


def test_a_container_that_cannot_start_is_reported_with_the_reason_of_its_pod() -> None:
    waiting = {"reason": "NoCommand", "message": "set command, or the annotation serving.dev/command"}
    assert failure_of_container(state={"waiting": waiting}) == Failure(
        layer=HealthLayer.RESOURCES, reason="NoCommand", message="set command, or the annotation serving.dev/command"
    )


@pytest.mark.parametrize("state", [{"waiting": {"reason": "ContainerCreating"}}, {"running": {}}, {}])
def test_a_start_is_no_failure(state: Object) -> None:
    assert failure_of_container(state=state) is None


def test_a_pod_without_a_place_is_reported() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no memory"}
    assert failure_of([a_pod(conditions=[condition])]) == Failure(
        layer=HealthLayer.RESOURCES, reason="Unschedulable", message="no memory"
    )


@pytest.mark.parametrize(
    ("status", "reason"), [({"reason": "Evicted", "message": "node is full"}, "Evicted"), ({}, "PodFailed")]
)
def test_a_pod_that_failed_before_any_container_is_reported(status: Object, reason: str) -> None:
    failure = failure_of([a_pod(phase="Failed", **status)])
    assert failure is not None
    assert failure.reason == reason


def test_the_oldest_pod_that_failed_is_reported() -> None:
    young = a_pod("a", containerStatuses=[container(state=exited(1))])
    young = stored(young, creationTimestamp="2026-11-21T05:00:00Z")
    well = a_pod("b")
    old = a_pod("c", containerStatuses=[container(state=exited(2))])
    failure = failure_of([young, well, old])
    assert failure is not None
    assert failure.reason == "ExitCode2"


def test_a_pod_on_its_way_out_reports_nothing() -> None:
    pod = a_pod(containerStatuses=[container(state=exited(1))])
    assert failure_of([stored(pod, deletionTimestamp="now")]) is None


def test_the_queue_proxy_is_not_the_users() -> None:
    assert failure_of([a_pod(containerStatuses=[{**container(state=exited(1)), "name": "queue-proxy"}])]) is None


def test_a_queue_proxy_that_cannot_be_started_is_reported() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    proxy = {**container(state=state, lastState=exited(1)), "name": "queue-proxy", "image": "serving"}
    failure = failure_of([a_pod(containerStatuses=[container(state={"running": {}}), proxy])])
    assert failure is not None
    assert (failure.reason, failure.message) == ("ContainerMissing", 'Unable to fetch image "serving": no such image')


@pytest.mark.parametrize(
    ("restart_count", "waiting", "failed"),
    [(0, "", False), (1, "", False), (2, "", True), (1, "CrashLoopBackOff", True)],
)
def test_exits_may_be_tolerated_until_they_are_a_loop(restart_count: int, waiting: str, failed: bool) -> None:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    pod = a_pod(containerStatuses=[container(state=state, lastState=exited(137), restartCount=restart_count)])
    assert (failure_of([pod], exits_tolerated=1) is not None) is failed


def test_a_long_message_keeps_its_end() -> None:
    failure = failure_of_container(state=exited(1, "x" * 5000 + "the end"))
    assert failure is not None
    assert failure.message.startswith("Container failed with: ...x")
    assert failure.message.endswith("the end")
    assert len(failure.message) < 4200


def test_a_failing_probe_is_reported_before_the_deadline() -> None:
    probe = {"type": "Ready", "status": "False", "reason": "ProbeFailed", "message": "port 8080: connection refused"}
    other = {"type": "Initialized", "status": "True"}
    assert not_ready_because([a_pod(conditions=[other, probe])]) == "port 8080: connection refused"


@pytest.mark.parametrize(
    ("containers", "init_containers", "is_known"),
    [
        (2, [], True),
        (3, [], False),
        (2, [{"name": "mesh", "restartPolicy": "Always"}], False),
        (2, [{"name": "i"}], True),
    ],
)
def test_the_ports_of_a_pod_are_the_apps_where_nothing_else_runs_beside_it(
    containers: int, init_containers: list[Object], *, is_known: bool
) -> None:
    listens = {"type": CONDITION_LISTENS, "status": "False", "reason": "WrongPort", "message": "it listens on 5000"}
    pod = a_pod(conditions=[{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}, listens])
    pod["spec"] = {
        "containers": [{"name": f"c{number}"} for number in range(containers)],
        "initContainers": init_containers,
    }
    assert not_ready_because([pod]) == ("it listens on 5000" if is_known else "")


@pytest.mark.parametrize("reason", ["ContainersNotReady", ""])
def test_what_is_said_of_every_pod_reports_nothing(reason: str) -> None:
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": "containers with unready status"}
    assert not_ready_because([a_pod(conditions=[condition]), a_pod("other")]) == ""


def begun(**status: object) -> Failure | None:
    return failure_of([a_pod(initContainerStatuses=[container(**status)], containerStatuses=[])])


def test_an_init_container_fails_when_it_keeps_failing_and_not_before() -> None:
    loop = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert begun(state={"running": {}}, lastState=exited(1), restartCount=7) is None
    assert begun(state=exited(0)) is None
    assert begun(state=loop, lastState=exited(1, "no database"), restartCount=2) == Failure(
        layer=HealthLayer.CONTAINER, reason="ExitCode1", message="Container failed with: no database"
    )


def test_an_image_by_digest_is_not_resolved_before_it_is_pulled() -> None:
    failure = failure_of_container(
        image="app@sha256:0", state={"waiting": {"reason": "ErrImagePull", "message": "gone"}}
    )
    assert failure == Failure(layer=HealthLayer.RESOURCES, reason="ErrImagePull", message="gone")


def test_a_pod_that_initializes_says_for_what_it_waits() -> None:
    waits = {"type": "Initialized", "status": "False", "reason": "ContainersNotInitialized", "message": "waits for [i]"}
    ready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers are not ready"}
    assert not_ready_because([a_pod(conditions=[waits, ready])]) == "waits for [i]"
    assert not_ready_because([a_pod(conditions=[{**waits, "status": "True"}, ready])]) == ""
