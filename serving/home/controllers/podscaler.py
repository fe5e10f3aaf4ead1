"""Scales Deployments by their HorizontalPodAutoscaler, as kube-controller-manager's controller does.

Input: HorizontalPodAutoscalers, Deployments, Pods and PodMetrics in the store. Output: ``spec.replicas`` of the
Deployment, the status of the HorizontalPodAutoscaler with a sentence, and an Event for each change.
``scaling.podscaling`` decides on the numbers. Earlier recommendations are only in memory, so after a restart the number
does not decrease for the scale-down window.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from serving.core.model.errors import ClusterError, InvalidValue
from serving.core.model.event import EventText, digest
from serving.core.model.knative import QUEUE_PROXY
from serving.core.model.nodata import NoData
from serving.core.model.objects import (
    FINISHED_PHASES,
    Key,
    Object,
    condition_of,
    is_being_deleted,
    key_of,
    labels_of,
    nested,
    timestamp_s,
    with_transition_time,
)
from serving.core.model.quantity import Resources, resources_of
from serving.core.scaling.podscaling import (
    MetricTarget,
    PodScalingState,
    PodUse,
    measured_metrics,
    pod_scaling_of,
    scaled_count,
)
from serving.net.aio.clock import now_s, stamp, wall_s
from serving.net.aio.periodic import next_beat
from serving.net.aio.supervise import supervise
from serving.net.cluster.events import announce
from serving.net.cluster.kinds import DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER, POD, POD_METRICS
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import Reflector, start_synced

_log = logging.getLogger("podscaler")

# Kubernetes' own period, in seconds.
_PERIOD_S = 15.0
_COMPONENT = "horizontal-pod-autoscaler"


class PodScaler:
    """Scales Deployments by their HorizontalPodAutoscalers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Deployments and pods are listed once a period, and only while something scales by them.
        self._scalers = Reflector(cluster, HORIZONTAL_POD_AUTOSCALER)
        self._states: dict[str, PodScalingState] = {}

    async def run(self) -> None:
        """Watch HorizontalPodAutoscalers, and scale by them periodically, until cancelled."""
        async with supervise() as group:
            await start_synced(group, (self._scalers,), owner="pod scaler")
            while True:
                await self.scale_all()
                await next_beat(_PERIOD_S)

    async def scale_all(self) -> None:
        """Apply all HorizontalPodAutoscalers once. A failure is written to the status of one; the others continue."""
        scalers = list(self._scalers.cache.values())
        uids = {scaler["metadata"]["uid"] for scaler in scalers}
        self._states = {uid: state for uid, state in self._states.items() if uid in uids}
        if not scalers:
            return
        deployments = {key_of(deployment): deployment for deployment in (await self._cluster.list(DEPLOYMENT)).items}
        pods = (await self._cluster.list(POD)).items
        try:
            measured = {
                key_of(pod_metrics): pod_metrics for pod_metrics in (await self._cluster.list(POD_METRICS)).items
            }
        except ClusterError as error:
            _log.warning("metrics.unread", extra={"error": str(error)})
            measured = {}
        for hpa in scalers:
            if is_being_deleted(hpa):
                continue
            try:
                target = deployments.get((hpa["metadata"]["namespace"], hpa["spec"]["scaleTargetRef"]["name"]))
                await self._scale(hpa, target, pods, measured=measured)
            except (ClusterError, InvalidValue) as error:
                _log.warning("scale.failed", extra={"object": hpa["metadata"]["name"], "error": str(error)})

    async def _scale(
        self, hpa: Object, deployment: Object | None, pods: Sequence[Object], *, measured: Mapping[Key, Object]
    ) -> None:
        target = hpa["spec"]["scaleTargetRef"]
        if target["kind"] != DEPLOYMENT.name or deployment is None:
            missing = f"there is no {target['kind']} {target['name']}; only Deployments are scaled here"
            await self._report(hpa, _condition("AbleToScale", "FailedGetScale", missing, is_true=False), {})
            return
        scaling, uid = pod_scaling_of(hpa), hpa["metadata"]["uid"]
        own_pods = _pods_of(deployment, pods)
        uses = [
            () if isinstance(metric, NoData) else uses_of(metric, own_pods, measured, at_wall_s=wall_s())
            for metric in scaling.metrics
        ]
        present_count = deployment["spec"].get("replicas", 1)
        state = self._states.get(uid, PodScalingState())
        state, count, reason = scaled_count(state, scaling, uses, present_count=present_count, now_s=now_s())
        if count != present_count:
            change = {"spec": {"replicas": count}}
            await self._cluster.patch(DEPLOYMENT, *key_of(deployment), patch=change)
            await self._announce(hpa, f"New size: {count}; reason: {reason}")
        self._states[uid] = state
        is_active = bool(present_count) and any(use.used is not None for each in uses for use in each)
        counts: Object = {"currentReplicas": present_count, "desiredReplicas": count}
        counts["currentMetrics"] = measured_metrics(scaling, uses)
        if count != present_count:
            counts["lastScaleTime"] = stamp()
        words = f"{present_count} → {count}: {reason}" if count != present_count else f"stays {count}: {reason}"
        active = (
            ("ValidMetricFound" if is_active else "FailedGetResourceMetric") if present_count else "ScalingDisabled"
        )
        await self._report(hpa, _condition("ScalingActive", active, words, is_true=is_active), counts)

    async def _report(self, hpa: Object, condition: Object, counts: Mapping[str, object]) -> None:
        judged = [condition]
        if condition["type"] != "AbleToScale":
            judged.insert(
                0, _condition("AbleToScale", "ReadyForNewScale", "the Deployment can be scaled", is_true=True)
            )
        conditions = [with_transition_time(entry, condition_of(hpa, entry["type"]), now=stamp()) for entry in judged]
        status = {"observedGeneration": hpa["metadata"].get("generation", 1), **counts, "conditions": conditions}
        if status.items() <= (hpa.get("status") or {}).items():
            return
        await self._cluster.patch(
            HORIZONTAL_POD_AUTOSCALER, *key_of(hpa), patch={"status": status}, subresource="status"
        )

    async def _announce(self, hpa: Object, message: str) -> None:
        words = EventText(reason="SuccessfulRescale", message=message, is_warning=False)
        await announce(self._cluster, hpa, words, suffix=digest(message, stamp()), component=_COMPONENT)


def _condition(kind: str, reason: str, message: str, *, is_true: bool) -> Object:
    return {"type": kind, "status": "True" if is_true else "False", "reason": reason, "message": message}


def _pods_of(deployment: Object, pods: Iterable[Object]) -> list[Object]:
    """The pods selected by a Deployment, without deleted and finished ones."""
    wanted = (nested(deployment, "spec", "selector", "matchLabels") or {}).items()
    namespace = deployment["metadata"]["namespace"]
    return [
        pod
        for pod in pods
        if pod["metadata"]["namespace"] == namespace
        and wanted <= labels_of(pod).items()
        and not is_being_deleted(pod)
        and nested(pod, "status", "phase") not in FINISHED_PHASES
    ]


def uses_of(
    metric: MetricTarget, pods: Sequence[Object], measured: Mapping[Key, Object], *, at_wall_s: float
) -> list[PodUse]:
    """What each pod requests and uses of a metric's resource, in cores or bytes.

    The request of a pod is None if a container has none. The cpu of a pod counts only if the pod was ready during the
    whole measurement, because before that it includes the app's start.
    """
    pod_uses = []
    for pod in pods:
        item = measured.get(key_of(pod))
        used_by_name = {
            container_metrics["name"]: resources_of(container_metrics.get("usage"))
            for container_metrics in (item or {}).get("containers") or ()
        }
        requested: float | None = 0.0
        used: float | None = 0.0 if item is not None else None
        for container in pod["spec"]["containers"]:
            name, resources = container["name"], container.get("resources") or {}
            if metric.container not in {"", name}:
                continue
            container_request = _amount(
                resources_of({**(resources.get("limits") or {}), **(resources.get("requests") or {})}), metric
            )
            # A queue-proxy requests nothing on this machine.
            if container_request is None and name == QUEUE_PROXY:
                continue
            requested = None if requested is None or container_request is None else requested + container_request
            amount = _amount(used_by_name[name], metric) if name in used_by_name else None
            used = None if used is None or amount is None else used + amount
        is_unready = metric.resource == "cpu" and not _was_ready(pod, item, at_wall_s)
        pod_uses.append(PodUse(requested=requested, used=used, is_unready=is_unready))
    return pod_uses


def _was_ready(pod: Object, item: Object | None, at_wall_s: float) -> bool:
    ready = condition_of(pod, "Ready")
    since_s = timestamp_s(ready.get("lastTransitionTime"))
    measured_s = timestamp_s((item or {}).get("timestamp")) or at_wall_s
    window_s = float(str((item or {}).get("window", "0")).removesuffix("s") or 0)
    return ready.get("status") == "True" and (since_s is None or since_s + window_s <= measured_s + 1.0)


def _amount(amounts: Resources, metric: MetricTarget) -> float | None:
    if metric.resource == "cpu":
        return None if amounts.cpu_m is None else amounts.cpu_m / 1000
    return None if amounts.memory_bytes is None else float(amounts.memory_bytes)
