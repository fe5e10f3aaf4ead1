"""Executes a decision: proves and writes the traffic path, reserves the revision, marks idle pods, sets the scale.

Input: views of one revision, as values, and the client that makes the calls. Output: the result of each call, as
values. A newer decision may exist after each await, so each step uses the latest one. To scale to zero, the revision is
first set to Reserve at its last observed version, and only then its scale is set to 0, by the same call where the
server has such a call. If an activator wakes the revision meanwhile, the write conflicts; if later, the activator
finds the revision in reserve and wakes it. A revision that gets pods is set to Active by the same call, or, without a
request, for example by a policy's min, by another. This module uses no cluster and no clock.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from serving.core.model.knative import RevisionKey, ServingState, TrafficPath
from serving.core.model.stat import Stat
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.removal import removal_rank
from serving.core.scaling.revision import ScaledDeployment, ScaledPod, ScaledRevision


class ReserveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a revision was set to Reserve, and the current object; None if it is deleted.

    ``scale_version`` is the new resourceVersion of its Deployment if the same call has set the scale to 0.
    """

    is_reserved: bool = False
    resource: Mapping[str, Any] | None = None
    scale_version: str | None = None


class ScaleResult(msgspec.Struct, frozen=True, kw_only=True):
    """The new resourceVersion of a scaled Deployment; ``woken`` is the revision if the same call has set it to Active."""

    version: str
    woken: Mapping[str, Any] | None = None


Costs = Iterable[tuple[str, str | None]]
"""The new deletion cost of each pod by name; None removes the annotation."""

# Below 0, the cost of pods without the annotation.
VICTIM_COST = "-1"


class Calls(Protocol):
    """The available writes. ``io.scale_writes.ScaleClient`` implements them."""

    async def reserve(
        self, revision: ScaledRevision, notes: Mapping[str, str | None], deployment: ScaledDeployment | None
    ) -> ReserveResult:
        """Set a revision to Reserve, with annotations, if it is unchanged.

        Also set the scale of its Deployment to 0, unless this needs another call.
        """
        ...

    async def wake(self, revision: ScaledRevision) -> Mapping[str, Any] | None:
        """Set a revision to Active if it is unchanged; None if it has changed."""
        ...

    async def lead(self, revision: ScaledRevision, path: TrafficPath) -> Mapping[str, Any] | None:
        """Write whether requests of a revision pass the activators; None if the revision has changed."""
        ...

    async def scale(
        self, deployment: ScaledDeployment, count: int, *, woken: ScaledRevision | None = None
    ) -> ScaleResult | None:
        """Set a Deployment's scale; None if the Deployment has changed or is deleted.

        Also set the revision ``woken`` to Active if it is unchanged, unless this needs another call.
        """
        ...

    async def mark(self, namespace: str, costs: Costs) -> None:
        """Set the annotation `pod-deletion-cost` of pods. ``costs`` has pairs of pod name and cost; None removes it."""
        ...


class WriteView(msgspec.Struct, frozen=True, kw_only=True):
    """The known state of one revision at one moment. Unknown parts are None.

    ``latest`` is the latest decision. ``notes`` are annotations, written with the next Reserve or later alone; None
    removes one. ``is_woken``: an activator has woken the revision since the decision.
    """

    revision: ScaledRevision | None
    deployment: ScaledDeployment | None
    latest: ScalerOutcome | None
    notes: Mapping[str, str | None] = {}
    is_woken: bool = False


class PathProved(msgspec.Struct, frozen=True):
    """The result of a probe: an activator responded, so requests can reach the revision through activators.

    The next decision, which follows immediately, may therefore scale the revision to zero.
    """


class ReserveRefused(msgspec.Struct, frozen=True):
    """The result of a write that would have set a revision to Reserve: the revision has changed meanwhile.

    Nothing was written; another decision follows.
    """


class RevisionWritten(msgspec.Struct, frozen=True):
    """The Revision returned by a write, before the watch delivers it, and the notes in that write."""

    resource: Mapping[str, Any]
    notes: Mapping[str, str | None] = {}


class ScaleWritten(msgspec.Struct, frozen=True):
    """The scale was set; the Deployment has this resourceVersion."""

    count: int
    version: str


Learned = PathProved | ReserveRefused | RevisionWritten | ScaleWritten


class Writer:
    """Executes decisions.

    ``view`` returns the present state of a revision. ``costs`` returns the deletion costs for removing a number of
    pods. ``prove`` probes whether an activator responds. ``learn`` is called with the result of each call.
    """

    def __init__(
        self,
        calls: Calls,
        *,
        view: Callable[[RevisionKey], WriteView | None],
        costs: Callable[[RevisionKey, int], Costs],
        learn: Callable[[RevisionKey, Learned], None],
        prove: Callable[[], Awaitable[bool]],
    ) -> None:
        self.proof_count = 0
        self.proof_failure_count = 0
        self._calls = calls
        self._view = view
        self._costs = costs
        self._learn = learn
        self._prove = prove

    async def write(self, key: RevisionKey) -> float | None:
        """Execute the remaining writes of the latest decision. Always returns None: the next decision retries them."""
        latest = self._latest(key)
        if latest is not None and latest.to_prove:
            await self._prove_path(key)
            latest = self._latest(key)
        if latest is not None and latest.apply_count is not None and not self._is_left_alone(key):
            await self._apply(key, latest, count=latest.apply_count)
        # Pods come first, because requests wait for them. On the way to zero the path was written and proved earlier.
        await self._lead(key)
        return None

    async def _apply(self, key: RevisionKey, latest: ScalerOutcome, *, count: int) -> None:
        if not latest.to_reserve or await self._reserve(key, count):
            await self._scale(key, count)
        if count and not latest.present.concurrency:
            await self._wake(key)

    def _is_left_alone(self, key: RevisionKey) -> bool:
        """Whether the target may not be scaled, or another controller would undo each write, except at scale 0."""
        view = self._view(key)
        if view is None or view.revision is None or view.deployment is None:
            return False
        return not view.revision.is_permitted or (view.revision.is_contested and view.deployment.replica_count > 0)

    def _latest(self, key: RevisionKey) -> ScalerOutcome | None:
        view = self._view(key)
        return None if view is None else view.latest

    async def _lead(self, key: RevisionKey) -> None:
        """Write the traffic path if it has changed since the last write."""
        view = self._view(key)
        if view is None or view.latest is None or view.revision is None or view.revision.path is view.latest.path:
            return
        self._written(key, await self._calls.lead(view.revision, view.latest.path))

    async def _prove_path(self, key: RevisionKey) -> None:
        if not await self._prove():
            self.proof_failure_count += 1
            return
        self.proof_count += 1
        self._learn(key, PathProved())

    async def _reserve(self, key: RevisionKey, count: int) -> bool:
        """Set an Active revision to Reserve; return whether it is in Reserve, or in any other state than Active, now.

        False also means that the revision has changed since the decision, or that a request has woken it.
        """
        view = self._view(key)
        revision = None if view is None else view.revision
        if view is None or revision is None or revision.serving_state is not ServingState.ACTIVE:
            return revision is not None
        if view.is_woken:
            # A request woke the revision after the decision.
            self._learn(key, ReserveRefused())
            return False
        result = await self._calls.reserve(revision, view.notes, None if count else view.deployment)
        self._written(key, result.resource, view.notes if result.is_reserved else {})
        if result.scale_version is not None:
            self._learn(key, ScaleWritten(0, result.scale_version))
        if not result.is_reserved:
            self._learn(key, ReserveRefused())
        return result.is_reserved

    async def _wake(self, key: RevisionKey) -> None:
        """Set a revision from Reserve to Active when it gets pods without a request."""
        view = self._view(key)
        if view is None or view.revision is None or view.revision.serving_state is not ServingState.RESERVE:
            return
        self._written(key, await self._calls.wake(view.revision))

    async def _scale(self, key: RevisionKey, count: int) -> None:
        view = self._view(key)
        deployment = None if view is None else view.deployment
        if deployment is None:
            return
        victim_count = deployment.replica_count - count
        if count and victim_count > 0:
            await self._calls.mark(key[0], self._costs(key, victim_count))
        # A decision made during an await is queued separately.
        latest = self._latest(key)
        if deployment.replica_count == count or latest is None or latest.apply_count != count:
            return
        revision = view.revision if view is not None and deployment.target is None else None
        is_wake = bool(count) and revision is not None and revision.serving_state is ServingState.RESERVE
        result = await self._calls.scale(deployment, count, woken=revision if is_wake else None)
        if result is not None:
            self._learn(key, ScaleWritten(count, result.version))
            self._written(key, result.woken)

    def _written(
        self, key: RevisionKey, resource: Mapping[str, Any] | None, notes: Mapping[str, str | None] = {}
    ) -> None:
        if resource is not None:
            self._learn(key, RevisionWritten(resource, notes))


def cost_changes(
    pods: Iterable[ScaledPod], reports: Mapping[str, Stat], *, victim_count: int, heats: Mapping[str, float] = {}
) -> list[tuple[str, str | None]]:
    """The deletion costs to change, by pod, so that ``victim_count`` pods are removed first.

    None removes the annotation. Pods are removed by ``removal_rank``, with ``heats`` if prompts choose pods, then by
    name, so that a repeated decision selects the same pods. Example: pods a, b and c have 3, 0 and 1 requests in flight, and two are to be removed: b and c get -1,
    unless they have it already.
    """

    def rank(pod: ScaledPod) -> tuple[tuple[float, float, float], str]:
        report, heat = reports.get(pod.name, Stat()), heats.get(pod.name, 0.0)
        dormant_since_s = report.at_s - report.idle_s if report.is_dormant else math.inf
        return removal_rank(heat=heat, in_flight=report.concurrency, dormant_since_s=dormant_since_s), pod.name

    ranked = sorted(pods, key=rank)
    victims, others = ranked[:victim_count], ranked[victim_count:]
    marked = [(pod.name, VICTIM_COST) for pod in victims if pod.deletion_cost != VICTIM_COST]
    return [*marked, *((pod.name, None) for pod in others if pod.deletion_cost == VICTIM_COST)]
