"""Where a decision is entry: the decision log, those who follow, and Events; one call for each decision.

Input: decisions with what stands behind them. Output: bytes for the log, events for followers, changes for Events, each
handed to a function that must not wait. A decision is encoded only if it goes somewhere: one that says nothing new costs
one look while there are no followers.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from serving.autoscaler.follow import Followers, Write, event_bytes, wish_of
from serving.autoscaler.policy_book import PolicyBook
from serving.model.knative import RevisionKey
from serving.scaling.revision import ScaledRevision
from serving.scaling.scaler.decision_history import DecisionRecord, HistoryEntry
from serving.scaling.scaler.decision_lines import DecisionLine
from serving.scaling.scaler.explain import explain
from serving.scaling.scaler.sample import sample_of
from serving.scaling.scaler.scaler import Scaler, ScalerOutcome


class DecisionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that was just event. ``entry`` is None when it says nothing new and is no sample either."""

    revision: ScaledRevision
    scaler: Scaler
    outcome: ScalerOutcome
    entry: HistoryEntry | None
    at_wall_s: float


class ExplainedDecision(DecisionLine, frozen=True, kw_only=True):
    """A remembered decision, whole, and its sentence."""

    entry: HistoryEntry = msgspec.field(name="told")


def explained(key: tuple[str, str], entry: HistoryEntry) -> ExplainedDecision:
    """A remembered decision with its sentence."""
    return ExplainedDecision(namespace=key[0], revision=key[1], sentence=explain(entry.outcome), entry=entry)


class DecisionPublisher:
    """``log`` takes a line, ``change`` a revision with the sentence of its change; None where there is no receiver."""

    def __init__(
        self,
        followers: Followers,
        *,
        log: Callable[[bytes], None] | None,
        change: Callable[[ScaledRevision, str], None] | None,
    ) -> None:
        self._followers = followers
        self._log = log
        self._change = change
        self._encode = msgspec.json.Encoder().encode

    def __repr__(self) -> str:
        """One line."""
        return f"DecisionPublisher({self._followers})"

    def publish(self, event: DecisionEvent) -> None:
        """Tell a decision, in the turn of the loop in which it was event."""
        key, entry = event.revision.key, event.entry
        if entry is not None:
            self._log_entry(event, entry)
            if not entry.repeated_count and event.outcome.apply_count is not None and self._change is not None:
                self._change(event.revision, explain(event.outcome))
            if self._followers:
                self._followers.tell("decision", key, self._encode(explained(key, entry)))
        if self._followers and self._followers.want_samples:
            sample = sample_of(event.outcome, event.scaler.pods, key=key, at_wall_s=event.at_wall_s)
            self._followers.tell("sample", key, self._encode(sample))

    def _log_entry(self, event: DecisionEvent, entry: HistoryEntry) -> None:
        if self._log is not None:
            namespace, name = event.revision.key
            record = DecisionRecord(namespace=namespace, revision=name, entry=entry, windows=event.scaler.windows())
            self._log(self._encode(record))


class DecisionBook:
    """What people ask of decisions: those that are remembered, and those to come; beside them what ``policies`` save."""

    def __init__(
        self,
        followers: Followers,
        *,
        keys: Callable[[], Iterable[RevisionKey]],
        decisions: Callable[[RevisionKey], Iterable[HistoryEntry]],
        policies: PolicyBook,
    ) -> None:
        self._followers = followers
        self._keys = keys
        self._decisions = decisions
        self.policies = policies

    def __repr__(self) -> str:
        """One line."""
        return f"DecisionBook({self._followers})"

    def encoded(self, names: Mapping[str, str]) -> bytes:
        """A JSON list, oldest first; ``namespace``, ``revision`` and ``since`` (seconds since the epoch) narrow it down."""
        return msgspec.json.encode(self._find(names))

    def follow(self, names: Mapping[str, str], write: Write) -> Callable[[], None]:
        """Write events from now on, with ``since`` those from then on; the answer ends it."""
        if "since" in names:
            for one in self._find(names):
                write(event_bytes("decision", msgspec.json.encode(one)))
        return self._followers.add(wish_of(names), write)

    def _find(self, names: Mapping[str, str]) -> list[ExplainedDecision]:
        wish, since_s = wish_of(names), _seconds(names.get("since", ""))
        found = [
            explained(key, one)
            for key in self._keys()
            if wish.lets_through("decision", key)
            for one in self._decisions(key)
            if one.at_wall_s >= since_s
        ]
        return sorted(found, key=lambda one: one.entry.since_wall_s)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
