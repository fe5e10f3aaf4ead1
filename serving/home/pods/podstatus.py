"""The status of a pod at each step of its life. Pure.

Input: the pod, and the state of each of its containers; output: the status as the API shows it. Init containers are
reported separately, as in Kubernetes: the pod is initialized when each has exited with 0.
"""

from collections.abc import Collection, Mapping, Sequence

from serving.core.model.knative import AWAKE_REASON, CONDITION_DORMANT, CONDITION_ISOLATED, IDLE_REASON
from serving.core.model.objects import Object, nested, object_at, objects_at, with_transition_time
from serving.home.pods.diskbudget import EVICTED
from serving.home.pods.podplan import ContainerState, all_containers, container_name_of, init_containers
from serving.home.pods.unready import Unready

BROKEN = "CreateContainerError"
"""The reason of a pod whose start failed unexpectedly, as a kubelet reports it."""

_BEFORE = ContainerState(waiting_reason="PodInitializing")


def pod_status(  # noqa: PLR0913 - what is known of a pod
    pod: Object,
    lives: Mapping[str, ContainerState],
    *,
    address: str,
    ready: bool,
    stamp: str,
    unready: Unready | None = None,
    image_ids: Mapping[str, str] | None = None,
) -> Object:
    """The status of a pod. ``lives`` are the states of its containers, by name.

    ``stamp`` is the time of a changed condition. ``unready`` is why the pod is not ready. ``image_ids`` are the images
    that the containers run, as NAME@DIGEST or sha256:ID.
    """
    last = pod.get("status") or {}
    before = {condition["type"]: condition for condition in last.get("conditions") or ()}
    first = {name: lives.get(name, _BEFORE) for name in map(container_name_of, init_containers(pod))}
    missing = [name for name, life in first.items() if not _has_succeeded(life)]
    names = [container_name_of(container) for container in pod["spec"]["containers"]]
    # In the manifest's order, whichever started first.
    apps = {name: lives.get(name, _BEFORE) for name in names if missing or name in lives}
    if not missing:
        apps |= {name: life for name, life in lives.items() if name not in first}
    is_ready = ready and not missing and all(life.is_running for life in apps.values())
    conditions = [
        _condition(before, "PodScheduled", is_true=True, stamp=stamp),
        _condition(before, "Initialized", is_true=not missing, stamp=stamp, unready=_uninitialized(missing)),
        _condition(before, "ContainersReady", is_true=is_ready, stamp=stamp),
        _condition(before, "Ready", is_true=is_ready, stamp=stamp, unready=unready),
    ]
    containers = {container_name_of(all_container): all_container for all_container in all_containers(pod)}

    def shown(name: str, life: ContainerState, *, is_fine: bool) -> Object:
        # A queue-proxy that is not running is listed although it is not in the manifest.
        container = {**containers.get(name, {}), "name": name}
        return _container_status(container, life, image_id=(image_ids or {}).get(name, ""), ready=is_fine)

    status: Object = {
        "phase": _phase(first.values(), apps.values(), is_initialized=not missing),
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "127.0.0.1",
        "conditions": conditions,
        "containerStatuses": [shown(name, life, is_fine=is_ready) for name, life in apps.items()],
    }
    # Null removes what was reported while it could not run.
    status |= {key: None for key in ("reason", "message") if last.get(key)}
    if first:
        status["initContainerStatuses"] = [
            shown(name, life, is_fine=_has_succeeded(life)) for name, life in first.items()
        ]
    return status


def with_dormancy(status: Object, pod: Object, *, is_dormant: bool, stamp: str) -> Object:
    """The status with a condition that tells whether the app is dormant, for a pod whose app may be frozen."""
    before = {condition["type"]: condition for condition in nested(pod, "status", "conditions") or ()}
    awake = Unready(reason=AWAKE_REASON, message="the app runs")
    dormant = _condition(before, CONDITION_DORMANT, is_true=is_dormant, stamp=stamp, unready=awake)
    if is_dormant:
        dormant |= {"reason": IDLE_REASON, "message": "the app is frozen; the next request thaws it"}
    return {**status, "conditions": [*status["conditions"], dormant]}


def with_isolation(status: Object, pod: Object, *, gap: str, stamp: str) -> Object:
    """The status with a false condition Isolated; ``gap`` names the missing layers of isolation."""
    before = {condition["type"]: condition for condition in nested(pod, "status", "conditions") or ()}
    unready = Unready(reason="LayersMissing", message=gap)
    isolated = _condition(before, CONDITION_ISOLATED, is_true=False, stamp=stamp, unready=unready)
    return {**status, "conditions": [*status["conditions"], isolated]}


def evicted_status(pod: Object, *, message: str, stamp: str) -> Object:
    """The status of an evicted pod, while it ends and afterwards."""
    before = {condition["type"]: condition for condition in nested(pod, "status", "conditions") or ()}
    failed = Unready(reason="PodFailed", message=message)
    target = _condition(before, "DisruptionTarget", is_true=True, stamp=stamp)
    added = [
        *(
            _condition(before, kind, is_true=False, stamp=stamp, unready=failed)
            for kind in ("ContainersReady", "Ready")
        ),
        {**target, "reason": "TerminationByKubelet", "message": message},
    ]
    # An evicted pod is not dormant.
    replaced = {CONDITION_DORMANT, *(condition["type"] for condition in added)}
    remaining = [condition for kind, condition in before.items() if kind not in replaced]
    return {"phase": "Failed", "reason": EVICTED, "message": message, "conditions": [*remaining, *added]}


def broken_status(pod: Object, *, message: str, stamp: str, reason: str = BROKEN) -> Object:
    """The status of a pod that cannot run, with ``reason`` and ``message``. Never raises, for any manifest."""
    life = ContainerState(waiting_reason=reason, waiting_message=message)
    shown = [
        _container_status({**container, "name": str(container_name_of(container))}, life, image_id="", ready=False)
        for container in objects_at(object_at(pod, "spec"), "containers")
    ]
    unready = Unready(reason=reason, message=message)
    conditions = [
        _condition({}, "PodScheduled", is_true=True, stamp=stamp),
        _condition({}, "Initialized", is_true=False, stamp=stamp, unready=unready),
        _condition({}, "ContainersReady", is_true=False, stamp=stamp, unready=unready),
        _condition({}, "Ready", is_true=False, stamp=stamp, unready=unready),
    ]
    return {
        "phase": "Pending",
        "reason": reason,
        "message": message,
        "conditions": conditions,
        "containerStatuses": shown,
        "initContainerStatuses": [],
    }


def _has_succeeded(life: ContainerState) -> bool:
    return life.is_over and life.exit_code == 0


def _uninitialized(missing: Sequence[str]) -> Unready:
    message = f"containers with incomplete status: [{' '.join(missing)}]"
    return Unready(reason="ContainersNotInitialized", message=message)


def _phase(first: Collection[ContainerState], apps: Collection[ContainerState], *, is_initialized: bool) -> str:
    if not is_initialized:
        return "Failed" if any(life.is_over and life.exit_code for life in first) else "Pending"
    if apps and all(life.is_over for life in apps):
        return "Failed" if any(life.exit_code for life in apps) else "Succeeded"
    return "Running" if any(life.is_running or life.awaits_restart for life in apps) else "Pending"


def _condition(
    before: Mapping[str, Object], kind: str, *, is_true: bool, stamp: str, unready: Unready | None = None
) -> Object:
    condition = {"type": kind, "status": "True" if is_true else "False"}
    condition = with_transition_time(condition, before.get(kind) or {}, now=stamp)
    if is_true:
        return condition
    if unready is None:
        return {**condition, "reason": "ContainersNotReady"}
    return {**condition, "reason": unready.reason, "message": unready.message}


def _container_status(container: Object, life: ContainerState, *, image_id: str, ready: bool) -> Object:
    """The ``containerStatuses`` entry of a container. ``ready`` applies only if the container runs or has completed."""
    ended = {
        "exitCode": life.exit_code,
        "message": life.last_lines,
        "reason": life.exit_reason or ("Error" if life.exit_code else "Completed"),
    }
    state: Object = {"waiting": {"reason": life.waiting_reason, "message": life.waiting_message}}
    if life.is_running:
        state = {"running": {"startedAt": life.started_at} if life.started_at else {}}
    elif life.is_over:
        state = {"terminated": ended}
    status = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": image_id,
        "ready": ready and (life.is_running or life.is_over),
        "started": life.is_running,
        # Kubernetes counts a restart when the container starts again, not when it ends.
        "restartCount": life.restart_count - life.awaits_restart,
        "state": state,
    }
    return status if life.exit_code is None or life.is_over else {**status, "lastState": {"terminated": ended}}
