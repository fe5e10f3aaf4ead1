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


def test_revision_without_deployment_is_deploying() -> None:
    status = status_of(a_revision(), None)
    assert [
        condition_values(status, condition_type)
        for condition_type in ("Ready", "ResourcesAvailable", "ContainerHealthy", "Active")
    ] == [("Unknown", "Deploying", "")] * 4
    assert (status["actualReplicas"], status["desiredReplicas"], status["observedGeneration"]) == (0, 1, 1)


def test_reserve_revision_without_deployment_desires_no_replicas() -> None:
    assert status_of(a_revision(state="Reserve"), None)["desiredReplicas"] == 0


def test_revision_with_ready_pod_is_ready_and_active() -> None:
    status = status_of(a_revision(), deploying(ready=1))
    assert [
        condition_values(status, condition_type)[0]
        for condition_type in ("Ready", "ResourcesAvailable", "ContainerHealthy", "Active")
    ] == ["True"] * 4
    assert (status["actualReplicas"], status["desiredReplicas"]) == (1, 1)


def test_budget_shortage_is_a_condition_independent_of_ready() -> None:
    assert condition_of(status_of(a_revision(), deploying(ready=1)), "WithinBudget") == {}
    revision = a_revision()
    revision["metadata"]["annotations"] = {SHORTAGE_ANNOTATION: "the budget of 5 pods is too small"}
    status = status_of(revision, deploying(ready=1))
    assert condition_values(status, "WithinBudget") == ("False", "BudgetTooSmall", "the budget of 5 pods is too small")
    assert condition_values(status, "Ready")[0] == "True"


def test_policy_failure_is_a_condition_independent_of_ready() -> None:
    assert condition_of(status_of(a_revision(), deploying(ready=1)), "PolicyInForce") == {}
    revision = a_revision()
    revision["metadata"]["annotations"] = {POLICY_FAILURE_ANNOTATION: "there is no policy mine here"}
    status = status_of(revision, deploying(ready=1))
    assert condition_values(status, "PolicyInForce") == ("False", "PolicyFailed", "there is no policy mine here")
    assert condition_values(status, "Ready")[0] == "True"


def test_revision_with_starting_pods_is_deploying() -> None:
    status = status_of(a_revision(), deploying(), a_pod())
    assert condition_values(status, "Ready") == ("Unknown", "Deploying", "")
    assert condition_values(status, "Active") == ("Unknown", "Deploying", "")


@pytest.mark.parametrize(("ready", "ready_status"), [(2, "Unknown"), (3, "True")])
def test_revision_is_ready_once_all_initial_pods_are_ready(ready: int, ready_status: str) -> None:
    scale = StartScale(start_count=3, min_count=0, progress_deadline_s=600)
    status = status_of(a_revision(), deploying(replicas=3, ready=ready), scale=scale)
    assert condition_values(status, "Ready")[0] == ready_status


def test_revision_below_min_scale_is_not_active() -> None:
    scale = StartScale(start_count=3, min_count=3, progress_deadline_s=600)
    status = status_of(with_ready(a_revision(), "True"), deploying(replicas=3, ready=1), scale=scale)
    assert (condition_values(status, "Ready")[0], condition_values(status, "Active")[:2]) == (
        "True",
        ("Unknown", "Queued"),
    )


def test_new_revision_whose_container_exits_fails() -> None:
    status = status_of(a_revision(), deploying(), a_pod(containerStatuses=[BOOM]))
    assert condition_values(status, "ContainerHealthy") == ("False", "ExitCode1", "Container failed with: boom")
    assert condition_values(status, "Ready") == ("False", "ExitCode1", "Container failed with: boom")
    assert condition_values(status, "ResourcesAvailable") == ("Unknown", "ExitCode1", "")


def test_exit_of_one_pod_is_no_failure_if_another_is_ready() -> None:
    scale = StartScale(start_count=2, min_count=0, progress_deadline_s=600)
    status = status_of(a_revision(), deploying(replicas=2, ready=1), a_pod(containerStatuses=[BOOM]), scale=scale)
    assert condition_values(status, "Ready") == ("Unknown", "Deploying", "")


def test_single_exit_does_not_fail_revision_that_was_ready() -> None:
    revision = with_ready(a_revision(), "True")
    status = status_of(revision, deploying(), a_pod(containerStatuses=[BOOM]))
    assert (condition_values(status, "Ready")[0], condition_values(status, "Active")[:2]) == (
        "True",
        ("Unknown", "Queued"),
    )


def test_crash_loop_fails_revision_that_was_ready() -> None:
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
def test_restart_delay_of_1_s_does_not_fail_ready_revision(message: str, is_ready: str) -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": message}
    container = {"name": "user-container", "restartCount": 1, "state": {"waiting": waiting}}
    container["lastState"] = {"terminated": {"exitCode": 1, "message": "boom"}}
    status = status_of(with_ready(a_revision(), "True"), deploying(), a_pod(containerStatuses=[container]))
    assert condition_values(status, "Ready")[0] == is_ready
    assert condition_values(status, "Restarted") == ("True", "", "containers of its pods have ended 2 times")


def test_replica_failure_is_reported_in_resources_available() -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}
    other = {"type": "Available", "status": "False"}
    status = status_of(a_revision(), deploying(conditions=[other, failed]))
    assert condition_values(status, "ResourcesAvailable") == ("False", "FailedCreate", "quota")
    assert condition_values(status, "ContainerHealthy") == ("Unknown", "FailedCreate", "")


def test_deployment_of_another_owner_is_reported() -> None:
    status = status_of(a_revision(), stored(deploying(ready=1), ownerReferences=[]))
    message = 'There is an existing Deployment "hello-00001-deployment" that we do not own.'
    assert condition_values(status, "ResourcesAvailable") == ("False", "NotOwned", message)


@pytest.mark.parametrize(
    ("now", "ready_status"), [("2026-11-21T04:10:00Z", "Unknown"), ("2026-11-21T04:10:01Z", "False")]
)
def test_revision_fails_after_progress_deadline(now: str, ready_status: str) -> None:
    assert condition_values(status_of(a_revision(), deploying(), now=now), "Ready")[0] == ready_status


def test_exceeded_deadline_reports_last_probe_failure() -> None:
    probe = {"type": "Ready", "status": "False", "reason": "ProbeFailed", "message": "connection refused"}
    late = status_of(a_revision(), deploying(), a_pod(conditions=[probe]), now="2026-11-21T05:00:00Z")
    assert condition_values(late, "Ready") == ("False", "ProgressDeadlineExceeded", "connection refused")
    silent = status_of(a_revision(), deploying(), now="2026-11-21T05:00:00Z")
    assert condition_values(silent, "Ready")[2] == "no pod was ready within 600 s"


def test_exceeded_deadline_of_deployment_is_reported() -> None:
    progressing = {
        "type": "Progressing",
        "status": "False",
        "reason": "ProgressDeadlineExceeded",
        "message": "timed out",
    }
    status = status_of(a_revision(), deploying(conditions=[progressing]))
    assert condition_values(status, "ResourcesAvailable") == ("False", "ProgressDeadlineExceeded", "timed out")


def test_deployment_without_creation_time_never_exceeds_deadline() -> None:
    status = status_of(a_revision(), stored(deploying(), creationTimestamp=None), now="2027-11-21T05:00:00Z")
    assert condition_values(status, "Ready")[0] == "Unknown"


def test_revision_at_zero_is_ready_and_not_active() -> None:
    revision = with_ready(a_revision(state="Reserve"), "True")
    status = status_of(revision, deploying(replicas=0))
    assert condition_values(status, "Ready")[0] == "True"
    assert condition_values(status, "Active") == ("False", "NoTraffic", "The target is not receiving traffic.")


def test_active_condition_has_severity_info() -> None:
    status = status_of(a_revision(), deploying(ready=1))
    assert [condition.get("severity") for condition in status["conditions"]] == ["Info", None, None, None]


def test_waking_revision_is_ready_and_active_is_queued() -> None:
    revision = with_ready(a_revision(state="Active"), "True")
    status = status_of(revision, deploying(replicas=0))
    assert (condition_values(status, "Ready")[0], condition_values(status, "Active")) == (
        "True",
        ("Unknown", "Queued", QUEUED),
    )


def test_remaining_pods_of_reserve_revision_do_not_make_it_active() -> None:
    revision = with_ready(a_revision(state="Reserve"), "True")
    assert condition_values(status_of(revision, deploying(replicas=0, ready=1)), "Active")[0] == "False"


def test_revision_with_start_scale_0_is_ready_immediately() -> None:
    scale = StartScale(start_count=0, min_count=0, progress_deadline_s=600)
    assert (
        condition_values(status_of(a_revision(state="Reserve"), deploying(replicas=0), scale=scale), "Ready")[0]
        == "True"
    )


def test_reserve_revision_that_was_never_ready_fails() -> None:
    status = status_of(a_revision(state="Reserve"), deploying(replicas=0))
    assert condition_values(status, "Ready") == (
        "False",
        "ProgressDeadlineExceeded",
        "Initial scale was never achieved",
    )


def test_abandoned_revision_retains_its_failure() -> None:
    failed = {**a_revision(), "status": status_of(a_revision(), deploying(), a_pod(containerStatuses=[BOOM]))}
    given_up = {**failed, "spec": {**failed["spec"], "servingState": "Reserve"}}
    status = status_of(given_up, deploying(replicas=0))
    assert condition_values(status, "ContainerHealthy") == ("False", "ExitCode1", "Container failed with: boom")


def test_failure_annotation_restores_failure_after_status_loss() -> None:
    failed = {**a_revision(), "status": status_of(a_revision(), deploying(), a_pod(containerStatuses=[BOOM]))}
    # An active revision shows its pods instead.
    assert failure_to_keep(failed) == ""
    failure = failure_to_keep({**failed, "spec": {**failed["spec"], "servingState": "Reserve"}})
    restarted = stored(a_revision(state="Reserve"), annotations={FAILURE_ANNOTATION: failure})
    status = status_of(restarted, deploying(replicas=0))
    assert condition_values(status, "ContainerHealthy") == ("False", "ExitCode1", "Container failed with: boom")
    assert failure_to_keep({**restarted, "status": status}) == failure


@pytest.mark.parametrize("text", ["", "boom", "[]", '{"layer": "Other", "reason": "", "message": ""}'])
def test_malformed_failure_annotation_is_ignored(text: str) -> None:
    revision = stored(a_revision(state="Reserve"), annotations={FAILURE_ANNOTATION: text})
    status = status_of(revision, deploying(replicas=0))
    assert condition_values(status, "Ready")[2] == "Initial scale was never achieved"
    assert failure_to_keep({**revision, "status": status}) == ""


def test_revision_that_became_ready_retains_no_failure() -> None:
    note = '{"layer": "ContainerHealthy", "reason": "ExitCode1", "message": "boom"}'
    revision = stored(a_revision(state="Reserve"), annotations={FAILURE_ANNOTATION: note, BECAME_READY_ANNOTATION: NOW})
    assert failure_to_keep(revision) == ""


def test_retired_revision_is_inactive_with_reason_retired() -> None:
    revision = with_ready(a_revision(state="Retired"), "True")
    assert condition_values(status_of(revision, deploying(replicas=0)), "Active")[:2] == ("False", "Retired")


@pytest.mark.parametrize("annotation", [BECAME_READY_ANNOTATION, "serving.dev/became-ready"])
def test_became_ready_annotation_restores_readiness(annotation: str) -> None:
    revision = stored(a_revision(state="Reserve"), annotations={annotation: NOW})
    assert was_ready(revision)
    assert condition_values(status_of(revision, deploying(replicas=0)), "Ready")[0] == "True"


def test_transition_times_are_unchanged_without_change() -> None:
    first = status_of(a_revision(), deploying(ready=1), now="then")
    again = status_of({**a_revision(), "status": first}, deploying(ready=1), now="now")
    assert again == first


def test_serving_state_defaults_to_active() -> None:
    assert serving_state_of({}) == "Active"


def running(name: str, image_id: str) -> Object:
    return {"name": name, "imageID": image_id, "state": {"running": {}}}


def test_digests_are_those_of_the_first_pod_and_do_not_change() -> None:
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


def test_pod_without_digests_sets_no_container_statuses() -> None:
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
def test_start_scale_is_read_from_annotations(annotations: dict[str, str], start_count: int) -> None:
    request_count = {GROUP + key: value for key, value in annotations.items()}
    assert start_scale(request_count, AutoscalerSettings()).start_count == start_count


def test_start_scale_without_limit_is_unbounded() -> None:
    settings = AutoscalerSettings(max_scale_limit=0)
    assert start_scale({GROUP + "initial-scale": "5000"}, settings).start_count == 5000


def test_start_scale_defaults_to_settings() -> None:
    settings = AutoscalerSettings(initial_scale=0, allow_zero_initial_scale=True, min_scale=0, max_scale=7)
    new_start_scale = start_scale({}, settings)
    assert (new_start_scale.start_count, new_start_scale.min_count, new_start_scale.progress_deadline_s) == (0, 0, 600)


def test_progress_deadline_is_read_from_annotation() -> None:
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
def test_container_exit_is_reported_with_last_log_lines(
    state: str, terminated: Object, reason: str, message: str
) -> None:
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
def test_exit_with_0_before_listening_is_explained(lines: str, message: str) -> None:
    pod = a_pod(containerStatuses=[container(lastState=exited(0, lines))])
    pod["spec"] = {"containers": [{"name": "user-container"}, {"name": "queue-proxy"}]}
    failure = failure_of([pod])
    assert failure is not None
    assert (failure.reason, failure.message) == ("ExitCode0", message)


def test_exit_with_0_of_non_serving_container_does_not_mention_port() -> None:
    pod = a_pod(containerStatuses=[container(name="beside", lastState=exited(0))])
    pod["spec"] = {"containers": [{"name": "app", "ports": [{}]}, {"name": "beside"}]}
    failure = failure_of([pod])
    assert failure is not None
    assert failure.message == "Container failed with: container exited with no error"


def test_crash_loop_is_reported_by_last_exit() -> None:
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
def test_crash_loop_without_last_exit_is_reported(message: str, reported: str) -> None:
    failure = failure_of_container(state={"waiting": {"reason": "CrashLoopBackOff", "message": message}})
    assert failure == Failure(layer=HealthLayer.CONTAINER, reason="CrashLoopBackOff", message=reported)


def test_image_pull_error_is_container_missing() -> None:
    failure = failure_of_container(state={"waiting": {"reason": "ErrImagePull", "message": "no such image"}})
    assert failure == Failure(
        layer=HealthLayer.CONTAINER, reason="ContainerMissing", message='Unable to fetch image "app": no such image'
    )


def test_unstartable_container_is_reported_with_waiting_reason() -> None:
    waiting = {"reason": "NoCommand", "message": "set command, or the annotation serving.dev/command"}
    assert failure_of_container(state={"waiting": waiting}) == Failure(
        layer=HealthLayer.RESOURCES, reason="NoCommand", message="set command, or the annotation serving.dev/command"
    )


@pytest.mark.parametrize("state", [{"waiting": {"reason": "ContainerCreating"}}, {"running": {}}, {}])
def test_starting_or_running_container_is_no_failure(state: Object) -> None:
    assert failure_of_container(state=state) is None


def test_unschedulable_pod_is_reported() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no memory"}
    assert failure_of([a_pod(conditions=[condition])]) == Failure(
        layer=HealthLayer.RESOURCES, reason="Unschedulable", message="no memory"
    )


@pytest.mark.parametrize(
    ("status", "reason"), [({"reason": "Evicted", "message": "node is full"}, "Evicted"), ({}, "PodFailed")]
)
def test_failed_pod_without_container_status_is_reported(status: Object, reason: str) -> None:
    failure = failure_of([a_pod(phase="Failed", **status)])
    assert failure is not None
    assert failure.reason == reason


def test_failure_of_the_oldest_failed_pod_is_reported() -> None:
    young = a_pod("a", containerStatuses=[container(state=exited(1))])
    young = stored(young, creationTimestamp="2026-11-21T05:00:00Z")
    well = a_pod("b")
    old = a_pod("c", containerStatuses=[container(state=exited(2))])
    failure = failure_of([young, well, old])
    assert failure is not None
    assert failure.reason == "ExitCode2"


def test_terminating_pod_reports_no_failure() -> None:
    pod = a_pod(containerStatuses=[container(state=exited(1))])
    assert failure_of([stored(pod, deletionTimestamp="now")]) is None


def test_exit_of_queue_proxy_is_no_failure() -> None:
    assert failure_of([a_pod(containerStatuses=[{**container(state=exited(1)), "name": "queue-proxy"}])]) is None


def test_queue_proxy_image_pull_error_is_reported() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    proxy = {**container(state=state, lastState=exited(1)), "name": "queue-proxy", "image": "serving"}
    failure = failure_of([a_pod(containerStatuses=[container(state={"running": {}}), proxy])])
    assert failure is not None
    assert (failure.reason, failure.message) == ("ContainerMissing", 'Unable to fetch image "serving": no such image')


@pytest.mark.parametrize(
    ("restart_count", "waiting", "failed"),
    [(0, "", False), (1, "", False), (2, "", True), (1, "CrashLoopBackOff", True)],
)
def test_one_exit_is_tolerated_but_no_crash_loop(restart_count: int, waiting: str, failed: bool) -> None:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    pod = a_pod(containerStatuses=[container(state=state, lastState=exited(137), restartCount=restart_count)])
    assert (failure_of([pod], exits_tolerated=1) is not None) is failed


def test_long_failure_message_is_truncated_at_its_start() -> None:
    failure = failure_of_container(state=exited(1, "x" * 5000 + "the end"))
    assert failure is not None
    assert failure.message.startswith("Container failed with: ...x")
    assert failure.message.endswith("the end")
    assert len(failure.message) < 4200


def test_failing_probe_is_the_reason_for_not_ready() -> None:
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
def test_wrong_port_is_reported_only_for_pods_with_one_app_container(
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
def test_generic_not_ready_reason_is_ignored(reason: str) -> None:
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": "containers with unready status"}
    assert not_ready_because([a_pod(conditions=[condition]), a_pod("other")]) == ""


def failure_of_init_container(**status: object) -> Failure | None:
    return failure_of([a_pod(initContainerStatuses=[container(**status)], containerStatuses=[])])


def test_init_container_fails_only_in_crash_loop() -> None:
    loop = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert failure_of_init_container(state={"running": {}}, lastState=exited(1), restartCount=7) is None
    assert failure_of_init_container(state=exited(0)) is None
    assert failure_of_init_container(state=loop, lastState=exited(1, "no database"), restartCount=2) == Failure(
        layer=HealthLayer.CONTAINER, reason="ExitCode1", message="Container failed with: no database"
    )


def test_pull_error_of_pinned_image_is_a_resource_failure() -> None:
    failure = failure_of_container(
        image="app@sha256:0", state={"waiting": {"reason": "ErrImagePull", "message": "gone"}}
    )
    assert failure == Failure(layer=HealthLayer.RESOURCES, reason="ErrImagePull", message="gone")


def test_initializing_pod_reports_pending_init_containers() -> None:
    waits = {"type": "Initialized", "status": "False", "reason": "ContainersNotInitialized", "message": "waits for [i]"}
    ready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers are not ready"}
    assert not_ready_because([a_pod(conditions=[waits, ready])]) == "waits for [i]"
    assert not_ready_because([a_pod(conditions=[{**waits, "status": "True"}, ready])]) == ""
