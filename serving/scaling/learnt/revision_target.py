"""The target of one revision: its own, or the learnt one where it asks for that.

Input: reports of pods, measurements of their cpu and memory, containers that were killed. Output: the learnt target, and the
spec that decisions are made with. What was learnt is shown also where it is not in force.
"""

import msgspec

from serving.model.resources import Resources
from serving.model.stat import Stat
from serving.scaling.learnt.learner import LearntTarget, TargetLearner
from serving.scaling.revision import ScaledRevision, ServingContainer
from serving.scaling.spec import ScalingSpec
from serving.settings.adaptive import AdaptiveSettings


class RevisionTarget:
    """One revision. ``spec`` is what decisions are made with; ``learnt`` is None before anything is known."""

    __slots__ = ("_container", "_learner", "_own", "_settings", "learnt", "spec")

    def __init__(self, revision: ScaledRevision, settings: AdaptiveSettings) -> None:
        self._own = self.spec = revision.spec
        self._container: ServingContainer = revision.container
        self._settings = settings
        self._learner = TargetLearner()
        self.learnt: LearntTarget | None = None

    def __repr__(self) -> str:
        """One line."""
        return f"RevisionTarget({self._learner})"

    def follow(self, revision: ScaledRevision) -> bool:
        """Take over numbers of the revision; whether they have changed."""
        self._container = revision.container
        if revision.spec == self._own:
            return False
        self._own = revision.spec
        self.spec = self._with(self.learnt)
        return True

    def load(self, learnt: str) -> None:
        """Go on from what was learnt before. Raises ``InvalidValue``."""
        self._learner.load(learnt)

    def take(self, stat: Stat) -> None:
        """A report of a pod."""
        if self._settings.learnt_target:
            self._learner.take(stat.concurrency, stat.ended_count, stat.response_time_s)

    def measure(self, stat: Stat, used: Resources) -> None:
        """What the container of a pod uses, with the pod's latest report."""
        if self._settings.learnt_target:
            self._learner.measure(stat.concurrency, stat.ended_count, used=used, limits=self._container.limits)

    def killed(self) -> None:
        """A container was killed for its memory."""
        if self._settings.learnt_target:
            self._learner.killed()

    def look(self, now_s: float) -> None:
        """Bring ``learnt`` and ``spec`` up to date."""
        if not self._settings.learnt_target:
            return
        learnt = self._learner.look(
            self._own,
            self._container.limits,
            period_s=self._settings.learnt_target_period_s,
            total_max=self._settings.learnt_target_max,
            now_s=now_s,
        )
        if learnt != self.learnt:
            self.learnt, self.spec = learnt, self._with(learnt)

    def due_save(self, now_s: float) -> str | None:
        """What was learnt, as text for ``load``; None while there is nothing new, or it was saved not long ago."""
        return self._learner.due_save(self._own, now_s)

    def _with(self, learnt: LearntTarget | None) -> ScalingSpec:
        """The revision's numbers with the learnt target, if that is in force."""
        own = self._own
        if learnt is None or not own.learns_target or not self._settings.learnt_target:
            return own
        target = learnt.total * own.target_value / own.total_value
        return msgspec.structs.replace(own, total_value=learnt.total, target_value=target, target_concurrency=target)
