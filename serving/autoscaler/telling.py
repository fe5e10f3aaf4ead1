"""Where a decision is told: the decision log, those who follow, and Events; one call for each decision.

Input: decisions with what stands behind them. Output: bytes for the log, events for followers, changes for Events, each
handed to a function that must not wait. Nothing is encoded for nobody: a decision that says nothing new costs one look
while nobody follows.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from serving.autoscaler.explain import explain
from serving.autoscaler.follow import Followers, Write, event_bytes, wish_of
from serving.autoscaler.revision import RevisionFacts
from serving.autoscaler.sample import sample_of
from serving.autoscaler.scaler import Outcome, Scaler
from serving.autoscaler.story import Record, Remembered
from serving.model.knative import RevisionKey

__all__ = ["DECISION_LOG", "DECISION_LOG_FILES", "DecisionBook", "Explained", "Made", "Teller", "explained"]


DECISION_LOG = "decisions.jsonl"
"""Name of the decision log in the state folder; older files of it end in .1, .2 and .3."""

DECISION_LOG_FILES = 4


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that was just made. ``told`` is None when it says nothing new and is no sample either."""

    revision: RevisionFacts
    scaler: Scaler
    outcome: Outcome
    told: Remembered | None
    at_wall_s: float


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """What people get: a remembered decision and its sentence."""

    namespace: str
    revision: str
    sentence: str
    told: Remembered


def explained(key: tuple[str, str], told: Remembered) -> Explained:
    """A remembered decision with its sentence."""
    return Explained(namespace=key[0], revision=key[1], sentence=explain(told.outcome), told=told)


class Teller:
    """``log`` takes a line, ``change`` a revision with the sentence of its change; None where there is nobody."""

    def __init__(
        self,
        followers: Followers,
        *,
        log: Callable[[bytes], None] | None,
        change: Callable[[RevisionFacts, str], None] | None,
    ) -> None:
        self._followers = followers
        self._log = log
        self._change = change
        self._encode = msgspec.json.Encoder().encode

    def __repr__(self) -> str:
        """One line."""
        return f"Teller({self._followers})"

    def tell(self, made: Made) -> None:
        """Tell a decision, in the turn of the loop in which it was made."""
        key, told = made.revision.key, made.told
        if told is not None:
            self._tell_log(made, told)
            if not told.repeated_count and made.outcome.apply_count is not None and self._change is not None:
                self._change(made.revision, explain(made.outcome))
            if self._followers:
                self._followers.tell("decision", key, self._encode(explained(key, told)))
        if self._followers and self._followers.want_samples:
            sample = sample_of(made.outcome, made.scaler.pods, key=key, at_wall_s=made.at_wall_s)
            self._followers.tell("sample", key, self._encode(sample))

    def _tell_log(self, made: Made, told: Remembered) -> None:
        if self._log is not None:
            namespace, name = made.revision.key
            record = Record(namespace=namespace, revision=name, told=told, windows=made.scaler.windows())
            self._log(self._encode(record))


class DecisionBook:
    """What people are told of decisions: those that are remembered, and those to come."""

    def __init__(
        self,
        followers: Followers,
        *,
        keys: Callable[[], Iterable[RevisionKey]],
        decisions: Callable[[RevisionKey], Iterable[Remembered]],
    ) -> None:
        self._followers = followers
        self._keys = keys
        self._decisions = decisions

    def __repr__(self) -> str:
        """One line."""
        return f"DecisionBook({self._followers})"

    def told(self, names: Mapping[str, str]) -> bytes:
        """A JSON list, oldest first; ``namespace``, ``revision`` and ``since`` (seconds since the epoch) narrow it down."""
        return msgspec.json.encode(self._find(names))

    def follow(self, names: Mapping[str, str], write: Write) -> Callable[[], None]:
        """Write events from now on, with ``since`` those from then on; the answer ends it."""
        if "since" in names:
            for one in self._find(names):
                write(event_bytes("decision", msgspec.json.encode(one)))
        return self._followers.add(wish_of(names), write)

    def _find(self, names: Mapping[str, str]) -> list[Explained]:
        wish, since_s = wish_of(names), _seconds(names.get("since", ""))
        found = [
            explained(key, one)
            for key in self._keys()
            if wish.lets_through("decision", key)
            for one in self._decisions(key)
            if one.at_wall_s >= since_s
        ]
        return sorted(found, key=lambda one: one.told.since_wall_s)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
