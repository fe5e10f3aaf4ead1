import pytest

from serving.core.model.knative import CONDITION_DORMANT, CONDITION_ISOLATED
from serving.core.model.objects import Object
from serving.home.pods.podplan import ContainerState
from serving.home.pods.podstatus import broken_status, evicted_status, pod_status, with_isolation

POD: Object = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
DONE = ContainerState(is_over=True, exit_code=0)
RUNNING = ContainerState(is_running=True)


def status(lives: dict[str, ContainerState], *, ready: bool = True, before: Object | None = None) -> Object:
    result = {**POD, "status": before or {}}
    return pod_status(result, lives, address="127.64.0.9", ready=ready, stamp="now")


def ready_of(entry: Object) -> str:
    return str(next(condition["status"] for condition in entry["conditions"] if condition["type"] == "Ready"))


def test_a_pod_is_ready_when_its_queue_proxy_says_so_and_all_run() -> None:
    running = ContainerState(is_running=True)
    assert ready_of(status({"c": running})) == "True"
    assert ready_of(status({"c": running}, ready=False)) == "False"
    assert ready_of(status({"c": running, "d": ContainerState()})) == "False"


def test_a_container_that_ended_reports_how() -> None:
    life = ContainerState(
        restart_count=2, exit_code=3, last_lines="boom", waiting_reason="CrashLoopBackOff", waiting_message="later"
    )
    entry = status({"c": life})
    (container,) = entry["containerStatuses"]
    assert entry["phase"] == "Running"
    assert container["restartCount"] == 1
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "later"}}
    assert container["lastState"]["terminated"] == {"exitCode": 3, "message": "boom", "reason": "Error"}


@pytest.mark.parametrize(("codes", "phase"), [((0, 0), "Succeeded"), ((0, 3), "Failed")])
def test_a_pod_whose_containers_are_not_started_again_is_over(codes: tuple[int, ...], phase: str) -> None:
    lives = {str(index): ContainerState(is_over=True, exit_code=code) for index, code in enumerate(codes)}
    entry = status(lives, ready=False)
    assert entry["phase"] == phase
    assert [
        container_status["state"]["terminated"]["exitCode"] for container_status in entry["containerStatuses"]
    ] == list(codes)
    assert status({**lives, "x": ContainerState(is_running=True)}, ready=False)["phase"] == "Running"


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    then = [{"type": "Ready", "status": "True", "lastTransitionTime": "then"}]
    entry = status({"c": ContainerState(is_running=True)}, before={"conditions": then})
    assert then[0] in entry["conditions"]
    assert entry["phase"] == "Running"


def begun(**lives: ContainerState) -> Object:
    """The status of a pod with two containers that run before the others."""
    first = [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]
    pod = {**POD, "spec": {**POD["spec"], "initContainers": first}}
    return pod_status(pod, lives, address="127.64.0.9", ready=True, stamp="now", image_ids={"c": "i@sha256:1"})


def initialized_of(entry: Object) -> Object:
    return next(condition for condition in entry["conditions"] if condition["type"] == "Initialized")


def test_a_pod_is_pending_until_the_containers_before_the_others_have_succeeded() -> None:
    entry = begun(one=DONE, two=RUNNING)
    assert (entry["phase"], ready_of(entry)) == ("Pending", "False")
    assert initialized_of(entry)["message"] == "containers with incomplete status: [two]"
    assert [init_container_status["ready"] for init_container_status in entry["initContainerStatuses"]] == [True, False]
    assert entry["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert entry["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing", "message": ""}}


def test_a_pod_is_initialized_once_they_have_succeeded() -> None:
    entry = begun(one=DONE, two=DONE, c=RUNNING)
    assert (entry["phase"], ready_of(entry), initialized_of(entry)["status"]) == ("Running", "True", "True")
    assert [container_status["name"] for container_status in entry["containerStatuses"]] == ["c"]
    assert entry["containerStatuses"][0]["imageID"] == "i@sha256:1"


def test_what_an_app_waits_for_is_reported_before_it_is_initialized() -> None:
    entry = begun(c=ContainerState(waiting_reason="ErrImagePull"))
    assert entry["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImagePull"
    assert [
        init_container_status["state"]["waiting"]["reason"] for init_container_status in entry["initContainerStatuses"]
    ] == ["PodInitializing"] * 2


def test_a_pod_whose_beginning_fails_permanently_has_failed() -> None:
    assert begun(one=ContainerState(is_over=True, exit_code=3))["phase"] == "Failed"
    assert begun(one=ContainerState(exit_code=3, restart_count=1))["phase"] == "Pending"


def test_containers_are_listed_in_the_order_of_the_manifest() -> None:
    pod = {**POD, "spec": {"containers": [{"name": "b"}, {"name": "a"}]}}
    lives = {"queue-proxy": ContainerState(), "a": RUNNING, "b": RUNNING}
    entry = pod_status(pod, lives, address="127.64.0.9", ready=True, stamp="now")
    assert [container_status["name"] for container_status in entry["containerStatuses"]] == ["b", "a", "queue-proxy"]


@pytest.mark.parametrize("containers", [[{"name": "c", "image": "i"}], [{"image": 5}], [None], "x", None])
def test_a_pod_that_cannot_be_run_says_why_whatever_its_manifest(containers: object) -> None:
    entry = broken_status({"metadata": {"name": "p"}, "spec": {"containers": containers}}, message="why", stamp="now")
    assert (entry["phase"], entry["message"], ready_of(entry)) == ("Pending", "why", "False")
    assert all(
        container_status["state"]["waiting"]["message"] == "why" for container_status in entry["containerStatuses"]
    )


def test_a_pod_that_runs_again_has_no_reason_of_its_own() -> None:
    entry = status({"c": RUNNING}, before={"reason": "CreateContainerError", "message": "why"})
    assert (entry["reason"], entry["message"]) == (None, None)
    assert "reason" not in status({"c": RUNNING})


def test_a_pod_that_is_isolated_less_says_by_what_and_keeps_the_time() -> None:
    isolation = with_isolation(
        status({"c": ContainerState(is_running=True)}), POD, gap="not isolated by x", stamp="now"
    )
    (entry,) = [condition for condition in isolation["conditions"] if condition["type"] == CONDITION_ISOLATED]
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", "LayersMissing", "not isolated by x")
    again = with_isolation(isolation, {**POD, "status": isolation}, gap="not isolated by x", stamp="later")
    assert again["conditions"][-1]["lastTransitionTime"] == "now"


def test_a_container_says_when_it_began_unless_an_earlier_control_process_started_it() -> None:
    for started_at, running in (
        ("2026-11-24T10:00:00.250000Z", {"startedAt": "2026-11-24T10:00:00.250000Z"}),
        ("", {}),
    ):
        entry = status({"c": ContainerState(is_running=True, started_at=started_at)})
        assert entry["containerStatuses"][0]["state"] == {"running": running}


def test_an_evicted_pod_has_failed_and_does_not_sleep() -> None:
    seen = [
        {"type": kind, "status": "True", "lastTransitionTime": "old"}
        for kind in ("Ready", "Initialized", CONDITION_DORMANT)
    ]
    status = evicted_status({"status": {"conditions": seen}}, message="full", stamp="now")
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "Evicted", "full")
    result = {
        condition["type"]: (condition["status"], condition["lastTransitionTime"]) for condition in status["conditions"]
    }
    gone, results = ("False", "now"), ("True", "old")
    assert result == {
        "Initialized": results,
        "ContainersReady": gone,
        "Ready": gone,
        "DisruptionTarget": ("True", "now"),
    }
