"""Cold starts in steps from a request at zero to its pod, with the median and advice for shortening it.

Input: the requests that waited for a first pod (from activators), changes of scale, and observed changes of pods.
Output: the steps of each start in seconds. Time before an unknown milestone counts as ``UNKNOWN``. Pure: each time is
an argument, in seconds since the epoch.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.knative import REVISION_LABEL
from serving.core.model.objects import Object, condition_of, labels_of, name_of, nested, timestamp_s

DECIDED, CREATED, SCHEDULED, STARTED, READY, SENT, UNKNOWN = STEPS = (
    "autoscaler decides",
    "pod is created",
    "pod is scheduled",
    "container starts",
    "app starts",
    "request is sent",
    "unknown",
)
"""The steps of a cold start in order. The last step is the sum of unobserved steps."""

_REMEDIES = {
    STARTED: "A smaller image, or one that is on the node already, starts sooner.",
    SCHEDULED: "A node had to be found: requests that fit a node, or nodes ahead of pods, shorten it.",
    UNKNOWN: "The dashboard did not see these steps: it started later, or its watch was away.",
}
_KEPT_MAX = 20
# If the first observation of a pod is later than this after its creation, in seconds, the creation was not observed.
_FOUND_S = 5.0
# The dashboard may observe a change slightly later than the activator.
_LAG_S = 0.5
_LEAST_S = 0.0005


class ColdRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The first request of a cold start.

    It arrived at ``asked_s`` (seconds since the epoch), and waited ``waited_s`` seconds for a pod.
    """

    revision: str
    asked_s: float
    waited_s: float


class PodMilestones(msgspec.Struct, kw_only=True):
    """When a pod was first observed as created, scheduled, running and ready; None if it was not observed."""

    created_s: float | None
    scheduled_s: float | None = None
    started_s: float | None = None
    ready_s: float | None = None


class StartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Known facts that explain the start times of a revision's pods.

    ``is_preloaded``: the app starts from a template process with its modules. ``is_python``: its command is Python.
    ``has_dormant``: the revision keeps idle pods dormant rather than removing them.
    """

    service: str
    is_preloaded: bool = False
    is_python: bool = False
    has_dormant: bool = False


class ColdStarts:
    """Stores when each revision's last pods started and its scale last changed."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, PodMilestones]] = {}
        self._changes: dict[str, deque[float]] = {}

    def set_pod(self, pod: Object, at_s: float) -> None:
        """Record the state of a pod at a time."""
        revision = labels_of(pod).get(REVISION_LABEL)
        if not revision:
            return
        pods = self._pods.setdefault(f"{nested(pod, 'metadata', 'namespace')}/{revision}", {})
        times = pods.get(name_of(pod))
        if times is None:
            made_s = timestamp_s(nested(pod, "metadata", "creationTimestamp"))
            is_new = made_s is not None and at_s - made_s < _FOUND_S
            times = pods[name_of(pod)] = PodMilestones(created_s=at_s if is_new else None)
            while len(pods) > _KEPT_MAX:
                del pods[next(iter(pods))]
        if times.created_s is None:
            return
        if times.scheduled_s is None and nested(pod, "spec", "nodeName"):
            times.scheduled_s = at_s
        if times.started_s is None:
            times.started_s = _started_s(pod, at_s)
        if times.ready_s is None and condition_of(pod, "Ready").get("status") == "True":
            times.ready_s = at_s

    def record_change(self, revision: str, at_s: float) -> None:
        """Record a change of the scale of "namespace/revision"."""
        self._changes.setdefault(revision, deque(maxlen=2 * _KEPT_MAX)).append(at_s)

    def forget(self, revision: str) -> None:
        """Drop a deleted revision."""
        self._pods.pop(revision, None)
        self._changes.pop(revision, None)

    def starts(self, revision: str, requests: Sequence[ColdRequest]) -> list[dict[str, Any]]:
        """The last cold starts of "namespace/revision", newest first: time, total seconds, and seconds per step."""
        latest = sorted(requests, key=lambda request: request.asked_s, reverse=True)[:_KEPT_MAX]
        return [
            {"at_s": request.asked_s, "took_s": request.waited_s, "steps": self._steps(revision, request)}
            for request in latest
        ]

    def _steps(self, revision: str, request: ColdRequest) -> dict[str, float]:
        asked_s, sent_s = request.asked_s, request.asked_s + request.waited_s
        changes = [at_s for at_s in self._changes.get(revision, ()) if asked_s - _LAG_S <= at_s <= sent_s]
        pods = [
            pod
            for pod in self._pods.get(revision, {}).values()
            if (pod.created_s is not None and asked_s <= pod.created_s <= sent_s)
            or (pod.ready_s is not None and asked_s <= pod.ready_s <= sent_s + _LAG_S)
        ]
        pod = min(pods, key=lambda pod: pod.ready_s or math.inf, default=PodMilestones(created_s=None))
        # A kubelet reports the readiness that the activator has probed up to a second later.
        ready_s = sent_s if pods and pod.ready_s is None else pod.ready_s
        times = (min(changes, default=None), pod.created_s, pod.scheduled_s, pod.started_s, ready_s, sent_s)
        steps: dict[str, float] = {}
        before_s, is_known = asked_s, True
        for step, at_s in zip(STEPS[:-1], times, strict=True):
            if at_s is None:
                is_known = False
                continue
            # Clocks of several machines differ slightly, and so do watches.
            ended_s = min(max(at_s, before_s), sent_s)
            if ended_s - before_s >= _LEAST_S:
                name = step if is_known else UNKNOWN
                steps[name] = round(steps.get(name, 0.0) + ended_s - before_s, 4)
            before_s, is_known = ended_s, True
        return steps


def _started_s(pod: Object, at_s: float) -> float | None:
    """The time from which all containers of a pod ran.

    Their timestamps are used if these have fractions of a second, else the time of observation.
    """
    states = [
        nested(container_status, "state", "running")
        for container_status in nested(pod, "status", "containerStatuses") or ()
    ]
    if not states or any(state is None for state in states):
        return None
    stamps = [state.get("startedAt") or "" for state in states]
    known = [timestamp_s(stamp) or at_s for stamp in stamps if "." in stamp]
    return max(known) if len(known) == len(stamps) else at_s


def summary(starts: Sequence[Mapping[str, Any]], facts: StartFacts) -> dict[str, Any]:
    """The medians of each step and of the total, and advice for the longest step; empty without a start."""
    if not starts:
        return {"took_s": None, "steps": {}, "advice": ""}
    steps = {
        step: statistics.median(start["steps"].get(step, 0.0) for start in starts)
        for step in STEPS
        if any(step in start["steps"] for start in starts)
    }
    took_s = statistics.median(start["took_s"] for start in starts)
    advice = _advice(steps, took_s, count=len(starts), facts=facts) if steps else ""
    return {"took_s": round(took_s, 4), "steps": steps, "advice": advice}


def duration_text(took_s: float) -> str:
    """A duration as in "35 ms" or "5.1 s"."""
    return f"{1000 * took_s:.0f} ms" if took_s < 1 else f"{took_s:.1f} s"


def _advice(steps: Mapping[str, float], took_s: float, *, count: int, facts: StartFacts) -> str:
    longest = max(steps, key=lambda step: steps[step])
    share = f"Of {duration_text(took_s)}, the median of {count}, {duration_text(steps[longest])} are: {longest}."
    keep = f"`serving scale {facts.service} --min 1` keeps a pod and spares all of it."
    dormant = "" if facts.has_dormant else " Dormant pods (`serving.dev/dormant`) stay without using cpu."
    return f"{share} {_remedy(longest, facts)} {keep}{dormant}"


def _remedy(longest: str, facts: StartFacts) -> str:
    if longest != READY:
        return _REMEDIES.get(
            longest, "This is the system's own work: look for load on this machine or the control plane."
        )
    if facts.is_preloaded:
        return "The app is preloaded: what it does after its import is left."
    if facts.is_python:
        return f"`serving deploy {facts.service} --preload` forks pods from a process that has imported the app."
    return "The app listens late: do less before it does."
