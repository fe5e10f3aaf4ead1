"""The autoscaler's loop: follows revisions, Deployments and pods, lets each revision's scaler decide, and writes the scale.

One writer: nobody else writes a Deployment's ``/scale``, and of a Revision it only turns Active into Reserve, fenced by
the version it read. Going to zero, Reserve comes first, so that a request that arrives meanwhile finds something to wake.
Each revision's writes are serial; what fails is tried again at the next decision.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from serving.aio.clock import now_s
from serving.aio.periodic import every
from serving.autoscaler.resolve import resolve
from serving.autoscaler.scaler import Facts, Outcome, Scaler
from serving.cluster.kinds import DEPLOYMENT, POD, REVISION
from serving.cluster.port import Cluster, Object
from serving.cluster.reflector import CacheChange, Reflector
from serving.model.errors import ClusterError
from serving.model.stat import Stat
from serving.settings.annotations import read_annotations
from serving.settings.autoscaler import CLASSIC_CLASS, KPA_CLASS, AutoscalerSettings

__all__ = ["AutoscalerLoop"]

_log = logging.getLogger("autoscaler")

RevisionKey = tuple[str, str]

_REVISION_LABEL = "serving.knative.dev/revision"
_DEPLOYMENT_SUFFIX = "-deployment"
# Decisions that are kept for each revision, for those who ask why: a quarter of an hour at one each two seconds.
_DECISIONS_KEPT = 450
# Decisions about one revision are at least this far apart, unless it is at zero.
_POKE_PAUSE_S = 0.05


class _Watched(msgspec.Struct, kw_only=True):
    """A revision that we scale. ``spec_of`` is what its scaler was made from, to notice a change."""

    scaler: Scaler
    made_from: Object
    history: deque[Outcome]
    proved_at_s: float | None = None
    decided_s: float = 0.0
    is_busy: bool = False
    is_due: bool = False


class AutoscalerLoop:
    """All revisions of one cluster. ``prove`` asks whether the activator is in the path."""

    def __init__(self, cluster: Cluster, settings: AutoscalerSettings, *, prove: Callable[[], Awaitable[bool]]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._prove = prove
        self._revisions = Reflector(cluster, REVISION)
        self._deployments = Reflector(cluster, DEPLOYMENT, label_selector=_REVISION_LABEL)
        self._pods = Reflector(cluster, POD, label_selector=_REVISION_LABEL)
        self._pods.on_change(self._pod_changed)
        self._revisions.on_change(self._revision_changed)
        self._ready: dict[RevisionKey, set[str]] = {}
        self._watched: dict[RevisionKey, _Watched] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._started_s = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Decide until ``stop`` is set."""
        reflectors = (self._revisions, self._deployments, self._pods)
        self._started_s = now_s()
        async with asyncio.TaskGroup() as group:
            self._tasks = group
            following = [group.create_task(one.run(), name=f"follow {one.kind.plural}") for one in reflectors]
            await _first_of(stop, *(one.synced for one in reflectors))
            _log.info("autoscaler.synced", extra={"revisions": len(self._revisions.cache)})
            await every(self._settings.decision_period_s, self._decide_all, stop=stop, on_error=_log_error)
            for task in following:
                task.cancel()

    def take(self, key: RevisionKey, stat: Stat, is_of_pod: bool) -> None:  # noqa: FBT001 - the server's callback
        """A stat arrived; one that cannot wait is decided on at once."""
        watched = self._watched.get(key) or self._begin(key)
        if watched is None:
            return
        is_urgent = watched.scaler.record(stat, now_s(), is_of_pod=is_of_pod)
        # An activator pokes when its queue has doubled; that cannot wait for the next beat.
        is_poke = not is_of_pod and stat.concurrency > 0 and now_s() - watched.decided_s >= _POKE_PAUSE_S
        if is_urgent or is_poke:
            self._decide_soon(key, watched)

    def explain(self, key: RevisionKey) -> bytes:
        """The last decisions about a revision as JSON, newest last."""
        watched = self._watched.get(key)
        return msgspec.json.encode(list(watched.history) if watched else [])

    async def _decide_all(self) -> None:
        for key in list(self._revisions.cache):
            watched = self._watched.get(key) or self._begin(key)
            if watched:
                self._decide_soon(key, watched)

    def _begin(self, key: RevisionKey) -> _Watched | None:
        """Take a revision on, unless it is unknown, retired, without a Deployment yet, or somebody else's."""
        revision = self._revisions.cache.get(key)
        facts = self._facts(key, None)
        if revision is None or facts is None or revision["spec"].get("servingState") == "Retired":
            return None
        read = read_annotations(revision["metadata"].get("annotations") or {}, self._settings)
        class_name = read.scaling.class_name or self._settings.pod_autoscaler_class
        if class_name not in (KPA_CLASS, CLASSIC_CLASS):
            return None
        container_concurrency = revision["spec"].get("containerConcurrency") or 0
        scaler = Scaler(
            spec=resolve(
                self._settings,
                read.scaling,
                container_concurrency=container_concurrency,
                reachable=_is_reachable(revision),
            ),
            settings=self._settings,
            is_classic=class_name == CLASSIC_CLASS,
            container_concurrency=container_concurrency,
            facts=facts,
            now_s=now_s(),
        )
        watched = _Watched(scaler=scaler, made_from=_scaling_part(revision), history=deque(maxlen=_DECISIONS_KEPT))
        self._watched[key] = watched
        return watched

    def _decide_soon(self, key: RevisionKey, watched: _Watched) -> None:
        """Decide in a task of its own; while one is at work, once more after it."""
        if watched.is_busy or self._tasks is None:
            watched.is_due = True
            return
        watched.is_busy = True
        self._tasks.create_task(self._decide(key, watched), name=f"decide {key[0]}/{key[1]}")

    async def _decide(self, key: RevisionKey, watched: _Watched) -> None:
        try:
            while True:
                watched.is_due = False
                await self._decide_once(key, watched)
                if not watched.is_due or self._watched.get(key) is not watched:
                    return
        except ClusterError as error:
            _log.warning("scale.failed", extra={"revision": key[1], "namespace": key[0], "error": str(error)})
        finally:
            watched.is_busy = False

    async def _decide_once(self, key: RevisionKey, watched: _Watched) -> None:
        facts = self._facts(key, watched.proved_at_s)
        if facts is None:
            return
        watched.decided_s = now_s()
        outcome = watched.scaler.decide(facts, now_s())
        if outcome.probe and await self._prove():
            watched.proved_at_s = now_s()
            outcome = watched.scaler.decide(msgspec.structs.replace(facts, proved_at_s=now_s()), now_s())
        watched.history.append(outcome)
        if outcome.apply is not None:
            await self._apply(key, outcome.apply, outcome)

    async def _apply(self, key: RevisionKey, count: int, outcome: Outcome) -> None:
        namespace, name = key
        if count == 0:
            revision = self._revisions.cache[key]
            version = revision["metadata"]["resourceVersion"]
            patch = {"metadata": {"resourceVersion": version}, "spec": {"servingState": "Reserve"}}
            await self._cluster.patch(REVISION, namespace, name, patch=patch)
        await self._cluster.patch(
            DEPLOYMENT, namespace, name + _DEPLOYMENT_SUFFIX, patch={"spec": {"replicas": count}}, subresource="scale"
        )
        _log.info(
            "scale.applied",
            extra={
                "namespace": namespace,
                "revision": name,
                "from": outcome.facts.present_scale,
                "to": count,
                "reason": outcome.gate.reason,
            },
        )

    def _facts(self, key: RevisionKey, proved_at_s: float | None) -> Facts | None:
        deployment = self._deployments.cache.get((key[0], key[1] + _DEPLOYMENT_SUFFIX))
        if deployment is None:
            return None
        replicas = deployment["spec"].get("replicas")
        return Facts(
            present_scale=1 if replicas is None else replicas,
            ready_count=len(self._ready.get(key, ())),
            # On one machine the activator never leaves the path.
            proxy_since_s=self._started_s,
            proved_at_s=proved_at_s,
        )

    def _pod_changed(self, change: CacheChange) -> None:
        namespace, name = change.key
        revision = change.new["metadata"]["labels"][_REVISION_LABEL]
        ready = self._ready.setdefault((namespace, revision), set())
        if (namespace, name) in self._pods.cache and _is_ready(change.new):
            ready.add(name)
        else:
            ready.discard(name)

    def _revision_changed(self, change: CacheChange) -> None:
        watched = self._watched.get(change.key)
        is_gone = change.key not in self._revisions.cache
        if watched and (is_gone or watched.made_from != _scaling_part(change.new)):
            # Made anew at the next decision, with the scale found then as its start.
            del self._watched[change.key]
        if is_gone:
            self._ready.pop(change.key, None)


async def _first_of(stop: asyncio.Event, *events: asyncio.Event) -> None:
    """Wait until all events are set, or ``stop`` is."""

    async def all_of() -> None:
        for event in events:
            await event.wait()

    tasks = [asyncio.create_task(all_of()), asyncio.create_task(stop.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def _scaling_part(revision: Object) -> Object:
    """What a scaler is made from: when it changes, the scaler begins anew."""
    annotations = revision["metadata"].get("annotations") or {}
    return {
        "uid": revision["metadata"].get("uid"),
        "annotations": {key: text for key, text in annotations.items() if "autoscaling" in key or "progress" in key},
        "concurrency": revision["spec"].get("containerConcurrency"),
        "retired": revision["spec"].get("servingState") == "Retired",
        "reachable": _is_reachable(revision),
    }


def _is_reachable(revision: Object) -> bool:
    """Whether a route names it, as the controller says in its routing state; pending counts as reachable."""
    labels = revision["metadata"].get("labels") or {}
    return labels.get("serving.knative.dev/routingState") != "reserve"


def _is_ready(pod: Object) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _log_error(error: Exception) -> None:
    _log.error("autoscaler.beat_failed", exc_info=error)
