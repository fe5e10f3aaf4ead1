"""What the status of pods says of a failure."""

import pytest

from serving.controller.revisions.pod_failure import Failure, HealthLayer, failure_of, not_ready_because
from serving.model.objects import Object
from tests.unit.controller.builders import a_pod, stored


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
    ],
)
@pytest.mark.parametrize("state", ["state", "lastState"])
def test_an_exit_is_told_with_its_last_lines(state: str, terminated: Object, reason: str, message: str) -> None:
    assert failure_of_container(**{state: terminated}) == Failure(
        layer=HealthLayer.CONTAINER, reason=reason, message=message
    )


def test_a_crash_loop_is_told_by_its_last_exit() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    found = failure_of_container(state=waiting, lastState=exited(2, "boom"))
    assert found is not None
    assert (found.reason, found.message) == ("ExitCode2", "Container failed with: boom")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("back-off 10s", "Container failed with: back-off 10s"),
        ("", "Container failed with: the container keeps exiting"),
    ],
)
def test_a_crash_loop_without_an_exit_is_one_all_the_same(message: str, told: str) -> None:
    found = failure_of_container(state={"waiting": {"reason": "CrashLoopBackOff", "message": message}})
    assert found == Failure(layer=HealthLayer.CONTAINER, reason="CrashLoopBackOff", message=told)


def test_an_image_that_cannot_be_had_is_a_missing_container() -> None:
    found = failure_of_container(state={"waiting": {"reason": "ErrImagePull", "message": "no such image"}})
    assert found == Failure(
        layer=HealthLayer.CONTAINER, reason="ContainerMissing", message='Unable to fetch image "app": no such image'
    )


def test_what_keeps_a_container_from_starting_is_told_as_the_pod_tells_it() -> None:
    waiting = {"reason": "NoCommand", "message": "set command, or the annotation serving.dev/command"}
    assert failure_of_container(state={"waiting": waiting}) == Failure(
        layer=HealthLayer.RESOURCES, reason="NoCommand", message="set command, or the annotation serving.dev/command"
    )


@pytest.mark.parametrize("state", [{"waiting": {"reason": "ContainerCreating"}}, {"running": {}}, {}])
def test_a_start_is_no_failure(state: Object) -> None:
    assert failure_of_container(state=state) is None


def test_a_pod_without_a_place_is_told() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no memory"}
    assert failure_of([a_pod(conditions=[condition])]) == Failure(
        layer=HealthLayer.RESOURCES, reason="Unschedulable", message="no memory"
    )


@pytest.mark.parametrize(
    ("status", "reason"), [({"reason": "Evicted", "message": "node is full"}, "Evicted"), ({}, "PodFailed")]
)
def test_a_pod_that_failed_before_any_container_is_told(status: Object, reason: str) -> None:
    found = failure_of([a_pod(phase="Failed", **status)])
    assert found is not None
    assert found.reason == reason


def test_the_oldest_pod_that_failed_is_told() -> None:
    young = a_pod("a", containerStatuses=[container(state=exited(1))])
    young = stored(young, creationTimestamp="2026-11-21T05:00:00Z")
    well = a_pod("b")
    old = a_pod("c", containerStatuses=[container(state=exited(2))])
    found = failure_of([young, well, old])
    assert found is not None
    assert found.reason == "ExitCode2"


def test_a_pod_on_its_way_out_tells_nothing() -> None:
    pod = a_pod(containerStatuses=[container(state=exited(1))])
    assert failure_of([stored(pod, deletionTimestamp="now")]) is None


def test_the_queue_proxy_is_not_the_users() -> None:
    assert failure_of([a_pod(containerStatuses=[{**container(state=exited(1)), "name": "queue-proxy"}])]) is None


def test_a_queue_proxy_that_cannot_be_started_is_told() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    proxy = {**container(state=state, lastState=exited(1)), "name": "queue-proxy", "image": "serving"}
    found = failure_of([a_pod(containerStatuses=[container(state={"running": {}}), proxy])])
    assert found is not None
    assert (found.reason, found.message) == ("ContainerMissing", 'Unable to fetch image "serving": no such image')


@pytest.mark.parametrize(
    ("restart_count", "waiting", "failed"),
    [(0, "", False), (1, "", False), (2, "", True), (1, "CrashLoopBackOff", True)],
)
def test_exits_may_be_tolerated_until_they_are_a_loop(restart_count: int, waiting: str, failed: bool) -> None:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    pod = a_pod(containerStatuses=[container(state=state, lastState=exited(137), restartCount=restart_count)])
    assert (failure_of([pod], exits_tolerated=1) is not None) is failed


def test_a_long_message_keeps_its_end() -> None:
    found = failure_of_container(state=exited(1, "x" * 5000 + "the end"))
    assert found is not None
    assert found.message.startswith("Container failed with: ...x")
    assert found.message.endswith("the end")
    assert len(found.message) < 4200


def test_a_probe_that_has_not_succeeded_is_told_while_there_is_hope() -> None:
    probe = {"type": "Ready", "status": "False", "reason": "ProbeFailed", "message": "port 8080: connection refused"}
    other = {"type": "Initialized", "status": "True"}
    assert not_ready_because([a_pod(conditions=[other, probe])]) == "port 8080: connection refused"


@pytest.mark.parametrize("reason", ["ContainersNotReady", ""])
def test_what_is_said_of_every_pod_tells_nothing(reason: str) -> None:
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
    found = failure_of_container(image="app@sha256:0", state={"waiting": {"reason": "ErrImagePull", "message": "gone"}})
    assert found == Failure(layer=HealthLayer.RESOURCES, reason="ErrImagePull", message="gone")


def test_a_pod_that_initializes_says_for_what_it_waits() -> None:
    waits = {"type": "Initialized", "status": "False", "reason": "ContainersNotInitialized", "message": "waits for [i]"}
    ready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers are not ready"}
    assert not_ready_because([a_pod(conditions=[waits, ready])]) == "waits for [i]"
    assert not_ready_because([a_pod(conditions=[{**waits, "status": "True"}, ready])]) == ""
