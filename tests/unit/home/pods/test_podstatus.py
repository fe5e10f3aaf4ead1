import pytest

from serving.core.model.knative import CONDITION_DORMANT, CONDITION_ISOLATED
from serving.core.model.objects import Object
from serving.home.pods.podplan import ContainerState
from serving.home.pods.podstatus import broken_status, evicted_status, pod_status, with_isolation

POD: Object = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
DONE = ContainerState(is_over=True, exit_code=0)
RUNNING = ContainerState(is_running=True)


def status(lives: dict[str, ContainerState], *, ready: bool = True, before: Object | None = None) -> Object:
    one = {**POD, "status": before or {}}
    return pod_status(one, lives, address="127.64.0.9", ready=ready, stamp="now")


def ready_of(found: Object) -> str:
    return str(next(one["status"] for one in found["conditions"] if one["type"] == "Ready"))


def test_a_pod_is_ready_when_its_queue_proxy_says_so_and_all_run() -> None:
    running = ContainerState(is_running=True)
    assert ready_of(status({"c": running})) == "True"
    assert ready_of(status({"c": running}, ready=False)) == "False"
    assert ready_of(status({"c": running, "d": ContainerState()})) == "False"


def test_a_container_that_ended_reports_how() -> None:
    life = ContainerState(
        restart_count=2, exit_code=3, last_lines="boom", waiting_reason="CrashLoopBackOff", waiting_message="later"
    )
    found = status({"c": life})
    (container,) = found["containerStatuses"]
    assert found["phase"] == "Pending"
    assert container["restartCount"] == 2
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "later"}}
    assert container["lastState"]["terminated"] == {"exitCode": 3, "message": "boom", "reason": "Error"}


@pytest.mark.parametrize(("codes", "phase"), [((0, 0), "Succeeded"), ((0, 3), "Failed")])
def test_a_pod_whose_containers_are_not_started_again_is_over(codes: tuple[int, ...], phase: str) -> None:
    lives = {str(index): ContainerState(is_over=True, exit_code=code) for index, code in enumerate(codes)}
    found = status(lives, ready=False)
    assert found["phase"] == phase
    assert [one["state"]["terminated"]["exitCode"] for one in found["containerStatuses"]] == list(codes)
    assert status({**lives, "x": ContainerState(is_running=True)}, ready=False)["phase"] == "Running"


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    then = [{"type": "Ready", "status": "True", "lastTransitionTime": "then"}]
    found = status({"c": ContainerState(is_running=True)}, before={"conditions": then})
    assert then[0] in found["conditions"]
    assert found["phase"] == "Running"


def begun(**lives: ContainerState) -> Object:
    """The status of a pod with two containers that run before the others."""
    first = [{"name": "one", "image": "i"}, {"name": "two", "image": "i"}]
    pod = {**POD, "spec": {**POD["spec"], "initContainers": first}}
    return pod_status(pod, lives, address="127.64.0.9", ready=True, stamp="now", image_ids={"c": "i@sha256:1"})


def initialized_of(found: Object) -> Object:
    return next(one for one in found["conditions"] if one["type"] == "Initialized")


def test_a_pod_is_pending_until_the_containers_before_the_others_have_succeeded() -> None:
    found = begun(one=DONE, two=RUNNING)
    assert (found["phase"], ready_of(found)) == ("Pending", "False")
    assert initialized_of(found)["message"] == "containers with incomplete status: [two]"
    assert [one["ready"] for one in found["initContainerStatuses"]] == [True, False]
    assert found["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert found["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing", "message": ""}}


def test_a_pod_is_initialized_once_they_have_succeeded() -> None:
    found = begun(one=DONE, two=DONE, c=RUNNING)
    assert (found["phase"], ready_of(found), initialized_of(found)["status"]) == ("Running", "True", "True")
    assert [one["name"] for one in found["containerStatuses"]] == ["c"]
    assert found["containerStatuses"][0]["imageID"] == "i@sha256:1"


def test_what_an_app_waits_for_is_reported_before_it_is_initialized() -> None:
    found = begun(c=ContainerState(waiting_reason="ErrImagePull"))
    assert found["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImagePull"
    assert [one["state"]["waiting"]["reason"] for one in found["initContainerStatuses"]] == ["PodInitializing"] * 2


def test_a_pod_whose_beginning_fails_permanently_has_failed() -> None:
    assert begun(one=ContainerState(is_over=True, exit_code=3))["phase"] == "Failed"
    assert begun(one=ContainerState(exit_code=3, restart_count=1))["phase"] == "Pending"


def test_containers_are_listed_in_the_order_of_the_manifest() -> None:
    pod = {**POD, "spec": {"containers": [{"name": "b"}, {"name": "a"}]}}
    lives = {"queue-proxy": ContainerState(), "a": RUNNING, "b": RUNNING}
    found = pod_status(pod, lives, address="127.64.0.9", ready=True, stamp="now")
    assert [one["name"] for one in found["containerStatuses"]] == ["b", "a", "queue-proxy"]


@pytest.mark.parametrize("containers", [[{"name": "c", "image": "i"}], [{"image": 5}], [None], "x", None])
def test_a_pod_that_cannot_be_run_says_why_whatever_its_manifest(containers: object) -> None:
    found = broken_status({"metadata": {"name": "p"}, "spec": {"containers": containers}}, message="why", stamp="now")
    assert (found["phase"], found["message"], ready_of(found)) == ("Pending", "why", "False")
    assert all(one["state"]["waiting"]["message"] == "why" for one in found["containerStatuses"])


def test_a_pod_that_runs_again_has_no_reason_of_its_own() -> None:
    found = status({"c": RUNNING}, before={"reason": "CreateContainerError", "message": "why"})
    assert (found["reason"], found["message"]) == (None, None)
    assert "reason" not in status({"c": RUNNING})


def test_a_pod_that_is_isolated_less_says_by_what_and_keeps_the_time() -> None:
    found = with_isolation(status({"c": ContainerState(is_running=True)}), POD, gap="not isolated by x", stamp="now")
    (made,) = [one for one in found["conditions"] if one["type"] == CONDITION_ISOLATED]
    assert (made["status"], made["reason"], made["message"]) == ("False", "LayersMissing", "not isolated by x")
    again = with_isolation(found, {**POD, "status": found}, gap="not isolated by x", stamp="later")
    assert again["conditions"][-1]["lastTransitionTime"] == "now"


def test_a_container_says_when_it_began_unless_an_earlier_control_process_started_it() -> None:
    for started_at, running in (
        ("2026-11-24T10:00:00.250000Z", {"startedAt": "2026-11-24T10:00:00.250000Z"}),
        ("", {}),
    ):
        found = status({"c": ContainerState(is_running=True, started_at=started_at)})
        assert found["containerStatuses"][0]["state"] == {"running": running}


def test_an_evicted_pod_has_failed_and_does_not_sleep() -> None:
    seen = [
        {"type": kind, "status": "True", "lastTransitionTime": "old"}
        for kind in ("Ready", "Initialized", CONDITION_DORMANT)
    ]
    status = evicted_status({"status": {"conditions": seen}}, message="full", stamp="now")
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "Evicted", "full")
    found = {one["type"]: (one["status"], one["lastTransitionTime"]) for one in status["conditions"]}
    gone, kept = ("False", "now"), ("True", "old")
    assert found == {"Initialized": kept, "ContainersReady": gone, "Ready": gone, "DisruptionTarget": ("True", "now")}
