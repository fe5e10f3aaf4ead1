"""What both policies cost each revision, and the curve by which the adaptive one keeps pods, in force or in shadow.

Input: scalers, and a query. Output: ``PolicyStory`` records as JSON. Revisions of classes without a policy are left out.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from serving.autoscaler.follow import wish_of
from serving.model.knative import RevisionKey
from serving.model.revisionnumbers import PolicyCosts
from serving.scaling.adaptive.policy_story import PolicyStory, savings_sentence
from serving.scaling.scaler.scaler import Scaler
from serving.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY


class PolicyBook:
    """All revisions. ``scaler`` gives the scaler of one, None while it has none."""

    def __init__(
        self, *, keys: Callable[[], Iterable[RevisionKey]], scaler: Callable[[RevisionKey], Scaler | None]
    ) -> None:
        self._keys, self._scaler = keys, scaler

    def __repr__(self) -> str:
        """One line."""
        return f"PolicyBook({len(list(self._keys()))} revisions)"

    def costs(self, key: RevisionKey, now_s: float) -> PolicyCosts | None:
        """What both policies cost a revision; None of one whose class has no policy."""
        scaler = self._scaler(key)
        return None if scaler is None or scaler.shadow is None else scaler.shadow.costs(now_s)

    def encoded(self, names: Mapping[str, str], *, now_s: float) -> bytes:
        """A JSON list; ``namespace`` and ``revision`` narrow it down, ``curve`` adds the curves."""
        wish = wish_of(names)
        stories = (
            self._story(key, has_curve="curve" in names, now_s=now_s)
            for key in self._keys()
            if wish.lets_through("decision", key)
        )
        return msgspec.json.encode([one for one in stories if one is not None])

    def _story(self, key: RevisionKey, *, has_curve: bool, now_s: float) -> PolicyStory | None:
        scaler = self._scaler(key)
        if scaler is None or scaler.shadow is None or scaler.learner is None:
            return None
        costs = scaler.shadow.costs(now_s)
        since_s = scaler.learner.idle_since_s
        running = KNATIVE_POLICY if scaler.policy is None else ADAPTIVE_POLICY
        return PolicyStory(
            namespace=key[0],
            revision=key[1],
            policy=running,
            shadow_scale=scaler.shadow.scale,
            costs=costs,
            sentence=savings_sentence(costs, running=running),
            idle_since_wall_s=None if since_s is None else since_s + scaler.shadow.wall_offset_s,
            curve=scaler.learner.curve() if has_curve else None,
        )
