"""What is done about a decision, in order: prove the path, reserve the revision, mark idle pods, set the scale, say the path.

Input: the revisions as the loop knows them, and the client that makes the calls. Each await is time for another decision, so that
each step looks again at what the latest one wants. On the way to zero the revision goes into reserve first, fenced by
the version that was seen: an activator that wakes it meanwhile makes that a conflict, or finds it in reserve and wakes it. Only then
its scale is set. A revision that gets pods without a request, as by a policy's min, comes out of reserve. It knows no
cluster and no clock.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from serving.autoscaler.entry import RevisionEntry
from serving.autoscaler.revision import ScaledDeployment, ScaledPod, ScaledRevision, is_older, revision_of
from serving.autoscaler.scaler import DecisionCause, ScalerOutcome
from serving.autoscaler.victims import cost_changes
from serving.model.knative import RevisionKey, ServingState, TrafficPath
from serving.settings.autoscaler import AutoscalerSettings

__all__ = ["Calls", "Decides", "Writer"]


class Calls(Protocol):
    """The writes there are; ``client.ScaleClient``."""

    async def reserve(self, revision: ScaledRevision) -> tuple[bool, Mapping[str, Any] | None]:
        """Put a revision into reserve if it is as it was seen: whether it was, and the object as it is now."""
        ...

    async def wake(self, revision: ScaledRevision) -> Mapping[str, Any] | None:
        """Take a revision out of reserve if it is as it was seen; None if it is not."""
        ...

    async def lead(self, revision: ScaledRevision, path: TrafficPath) -> Mapping[str, Any] | None:
        """Say which path requests to a revision should take; None if it is not as it was seen."""
        ...

    async def scale(self, deployment: ScaledDeployment, count: int) -> str | None:
        """Set a scale; the version after that."""
        ...

    async def mark(self, namespace: str, costs: Iterable[tuple[str, str | None]]) -> None:
        """Say what it costs to take pods away."""
        ...


class Decides(Protocol):
    """What the loop does when a write has taught something; ``loop.Autoscaler``."""

    def decide_soon(self, key: RevisionKey, cause: DecisionCause) -> None:
        """Decide as soon as may be."""
        ...

    def proved(self, key: RevisionKey) -> None:
        """The activator is in the path: decide on that at once."""
        ...

    def take_revision(self, key: RevisionKey, entry: RevisionEntry, found: ScaledRevision) -> None:
        """A revision as it is now."""
        ...

    def pods_of(self, key: RevisionKey, entry: RevisionEntry) -> Iterable[ScaledPod]:
        """Its ready pods."""
        ...


class Writer:
    """Does what decisions want. ``prove`` asks whether the activator is in the path."""

    def __init__(
        self,
        calls: Calls,
        decides: Decides,
        entries: Mapping[RevisionKey, RevisionEntry],
        *,
        prove: Callable[[], Awaitable[bool]],
        settings: AutoscalerSettings,
    ) -> None:
        self.proof_count = 0
        self.proof_failure_count = 0
        self._calls = calls
        self._decides = decides
        self._entries = entries
        self._prove = prove
        self.settings = settings

    def __repr__(self) -> str:
        """One line."""
        return f"Writer({self.proof_count} proofs, {self.proof_failure_count} in vain)"

    async def write(self, key: RevisionKey) -> float | None:
        """Do what the latest decision wants, if it wants anything still. None: not again before the next decision."""
        latest = self._latest(key)
        if latest is not None and latest.to_prove:
            await self._prove_path(key)
            latest = self._latest(key)
        entry = self._entries.get(key)
        if entry is not None and latest is not None and latest.apply_count is not None:
            await self._apply(key, entry, latest, count=latest.apply_count)
        # Pods first: requests wait for them. On the way to zero the path was written, and proved, long before.
        await self._lead(key)
        return None

    async def _apply(self, key: RevisionKey, entry: RevisionEntry, latest: ScalerOutcome, *, count: int) -> None:
        if not latest.to_reserve or await self._reserve(key, entry):
            await self._scale(key, entry, count)
        if count and not latest.present.concurrency:
            await self._wake(key, entry)

    def _latest(self, key: RevisionKey) -> ScalerOutcome | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.latest

    def _is_wanted_still(self, key: RevisionKey, count: int) -> bool:
        """Whether the latest decision is for that scale; if not, it stands in the queue itself."""
        latest = self._latest(key)
        return latest is not None and latest.apply_count == count

    async def _lead(self, key: RevisionKey) -> None:
        """Say which path requests should take, if that is another than was said last."""
        entry, latest = self._entries.get(key), self._latest(key)
        revision = None if entry is None else entry.revision
        if entry is None or latest is None or revision is None or revision.path is latest.path:
            return
        found = await self._calls.lead(revision, latest.path)
        facts = None if found is None else revision_of(found, self.settings)
        if facts is not None and entry.revision is not None and entry.revision.uid == facts.uid:
            self._decides.take_revision(key, entry, facts)

    async def _prove_path(self, key: RevisionKey) -> None:
        """Ask whether the activator is in the path; if it is, decide on that at once."""
        if not await self._prove():
            self.proof_failure_count += 1
            return
        self.proof_count += 1
        self._decides.proved(key)

    async def _reserve(self, key: RevisionKey, entry: RevisionEntry) -> bool:
        """Mark the revision as without pods; whether it is. A conflict may mean that it was woken."""
        revision = entry.revision
        if revision is None or revision.serving_state is not ServingState.ACTIVE:
            return revision is not None
        written, found = await self._calls.reserve(revision)
        facts = None if found is None else revision_of(found, self.settings)
        if facts is not None and entry.revision is not None and entry.revision.uid == facts.uid:
            # What a call answered is known before the watch brings it.
            self._decides.take_revision(key, entry, facts)
        if not written:
            self._decides.decide_soon(key, DecisionCause.CHANGE)
        return written

    async def _wake(self, key: RevisionKey, entry: RevisionEntry) -> None:
        """Take a revision out of reserve that gets pods without a request: no activator will do it."""
        revision = entry.revision
        if revision is None or revision.serving_state is not ServingState.RESERVE:
            return
        found = await self._calls.wake(revision)
        facts = None if found is None else revision_of(found, self.settings)
        if facts is not None and entry.revision is revision:
            self._decides.take_revision(key, entry, facts)

    async def _scale(self, key: RevisionKey, entry: RevisionEntry, count: int) -> None:
        deployment = entry.deployment
        if deployment is None or entry.scaler is None:
            return
        victim_count = deployment.replica_count - count
        if count and victim_count > 0:
            costs = cost_changes(self._decides.pods_of(key, entry), entry.scaler.pods, victim_count=victim_count)
            await self._calls.mark(key[0], costs)
        # Each await is time for another decision.
        if deployment.replica_count == count or not self._is_wanted_still(key, count):
            return
        version = await self._calls.scale(deployment, count)
        present = entry.deployment
        if version is not None and present is not None and not is_older(version, present.resource_version):
            entry.deployment = msgspec.structs.replace(present, replica_count=count, resource_version=version)
