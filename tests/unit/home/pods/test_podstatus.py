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


def test_pod_is_ready_if_queue_proxy_is_ready_and_containers_run() -> None:
    running = ContainerState(is_running=True)
    assert ready_of(status({"c": running})) == "True"
    assert ready_of(status({"c": running}, ready=False)) == "False"
    assert ready_of(status({"c": running, "d": ContainerState()})) == "False"


def test_container_status_has_waiting_reason_and_last_exit() -> None:
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
def test_phase_is_succeeded_or_failed_after_all_containers_ended(codes: tuple[int, ...], phase: str) -> None:
    lives = {str(index): ContainerState(is_over=True, exit_code=code) for index, code in enumerate(codes)}
    entry = status(lives, ready=False)
    assert entry["phase"] == phase
    assert [
        container_status["state"]["terminated"]["exitCode"] for container_status in entry["containerStatuses"]
    ] == list(codes)
    assert status({**lives, "x": ContainerState(is_running=True)}, ready=False)["phase"] == "Running"


def test_unchanged_condition_retains_transition_time() -> None:
    then = [{"type": "Ready", "status": "True", "lastTransitionTime": "then"}]
    entry = status({"c": ContainerState(is_running=True)}, before={"conditions": then})
    assert then[0] in entry["conditions"]
    assert entry["phase"] == "Running"


def begun(**lives: ContainerState) -> Object:
    """The status of a pod with two init containers."""
    first = [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]
    pod = {**POD, "spec": {**POD["spec"], "initContainers": first}}
    return pod_status(pod, lives, address="127.64.0.9", ready=True, stamp="now", image_ids={"c": "i@sha256:1"})


def initialized_of(entry: Object) -> Object:
    return next(condition for condition in entry["conditions"] if condition["type"] == "Initialized")


def test_pod_is_pending_until_init_containers_succeeded() -> None:
    entry = begun(one=DONE, two=RUNNING)
    assert (entry["phase"], ready_of(entry)) == ("Pending", "False")
    assert initialized_of(entry)["message"] == "containers with incomplete status: [two]"
    assert [init_container_status["ready"] for init_container_status in entry["initContainerStatuses"]] == [True, False]
    assert entry["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert entry["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing", "message": ""}}


def test_pod_is_initialized_after_init_containers_succeeded() -> None:
    entry = begun(one=DONE, two=DONE, c=RUNNING)
    assert (entry["phase"], ready_of(entry), initialized_of(entry)["status"]) == ("Running", "True", "True")
    assert [container_status["name"] for container_status in entry["containerStatuses"]] == ["c"]
    assert entry["containerStatuses"][0]["imageID"] == "i@sha256:1"


def test_app_waiting_reason_is_reported_before_initialization() -> None:
    entry = begun(c=ContainerState(waiting_reason="ErrImagePull"))
    assert entry["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImagePull"
    assert [
        init_container_status["state"]["waiting"]["reason"] for init_container_status in entry["initContainerStatuses"]
    ] == ["PodInitializing"] * 2


def test_pod_fails_with_permanently_failed_init_container() -> None:
    assert begun(one=ContainerState(is_over=True, exit_code=3))["phase"] == "Failed"
    assert begun(one=ContainerState(exit_code=3, restart_count=1))["phase"] == "Pending"


def test_container_statuses_are_in_manifest_order() -> None:
    pod = {**POD, "spec": {"containers": [{"name": "b"}, {"name": "a"}]}}
    lives = {"queue-proxy": ContainerState(), "a": RUNNING, "b": RUNNING}
    entry = pod_status(pod, lives, address="127.64.0.9", ready=True, stamp="now")
    assert [container_status["name"] for container_status in entry["containerStatuses"]] == ["b", "a", "queue-proxy"]


@pytest.mark.parametrize("containers", [[{"name": "c", "image": "i"}], [{"image": 5}], [None], "x", None])
def test_broken_pod_is_pending_with_message_for_any_manifest(containers: object) -> None:
    entry = broken_status({"metadata": {"name": "p"}, "spec": {"containers": containers}}, message="why", stamp="now")
    assert (entry["phase"], entry["message"], ready_of(entry)) == ("Pending", "why", "False")
    assert all(
        container_status["state"]["waiting"]["message"] == "why" for container_status in entry["containerStatuses"]
    )


def test_recovered_pod_clears_reason_and_message() -> None:
    entry = status({"c": RUNNING}, before={"reason": "CreateContainerError", "message": "why"})
    assert (entry["reason"], entry["message"]) == (None, None)
    assert "reason" not in status({"c": RUNNING})


def test_isolated_condition_names_gap_and_retains_transition_time() -> None:
    isolation = with_isolation(
        status({"c": ContainerState(is_running=True)}), POD, gap="not isolated by x", stamp="now"
    )
    (entry,) = [condition for condition in isolation["conditions"] if condition["type"] == CONDITION_ISOLATED]
    assert (entry["status"], entry["reason"], entry["message"]) == ("False", "LayersMissing", "not isolated by x")
    again = with_isolation(isolation, {**POD, "status": isolation}, gap="not isolated by x", stamp="later")
    assert again["conditions"][-1]["lastTransitionTime"] == "now"


def test_running_state_has_started_at_if_known() -> None:
    for started_at, running in (
        ("2026-11-24T10:00:00.250000Z", {"startedAt": "2026-11-24T10:00:00.250000Z"}),
        ("", {}),
    ):
        entry = status({"c": ContainerState(is_running=True, started_at=started_at)})
        assert entry["containerStatuses"][0]["state"] == {"running": running}


def test_evicted_pod_is_failed_and_not_dormant() -> None:
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
