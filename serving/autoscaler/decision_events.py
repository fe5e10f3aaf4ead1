"""Publishes each decision: to the decision log, to subscribers, and as Events.

Input: decisions with their inputs. Output: bytes for the log, events for subscribers, and changes for Events. Each
output is passed to a function that must not block. A decision is encoded only for a recipient: without subscribers, an
unchanged decision costs one check.
"""

from collections.abc import Callable, Iterable, Mapping
from urllib.parse import parse_qs, urlsplit

import msgspec

from serving.core.model.knative import RevisionKey
from serving.core.model.revisionnumbers import PolicyCosts
from serving.core.scaling.adaptive.policy import AdaptivePolicy
from serving.core.scaling.adaptive.policy_story import PolicyStory, savings_sentence
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.revision import ScaledRevision
from serving.core.scaling.scaler.decision_history import DecisionRecord, HistoryEntry
from serving.core.scaling.scaler.decision_lines import DecisionLine
from serving.core.scaling.scaler.explain import explain
from serving.core.scaling.scaler.rest import REST_MAX_S
from serving.core.scaling.scaler.sample import sample_of
from serving.core.scaling.scaler.scaler import Scaler

Write = Callable[[bytes], bool]
"""Writes the bytes of an event; returns whether the buffer had space."""


class FollowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber's filter: one revision or all (None), and whether to send every decision or only logged ones."""

    key: RevisionKey | None = None
    namespace: str | None = None
    samples: bool = False

    def lets_through(self, event: str, key: RevisionKey) -> bool:
        """Whether the filter matches an event about the revision."""
        return (
            (self.samples or event != "sample")
            and self.key in {None, key}
            and (self.namespace is None or self.namespace == key[0])
        )


def parse_target(target: str) -> tuple[str, dict[str, str]]:
    """The path and query parameters of a request target. A repeated parameter gets the value ""."""
    url = urlsplit(target)
    query = parse_qs(url.query, keep_blank_values=True)
    return url.path, {name: values[0] if len(values) == 1 else "" for name, values in query.items()}


def subscription_of(names: Mapping[str, str]) -> FollowRequest:
    """Parse a subscription's query: ``namespace``, ``revision`` and ``samples``, each optional."""
    namespace, revision = names.get("namespace"), names.get("revision")
    key = (namespace or "default", revision) if revision else None
    return FollowRequest(key=key, namespace=namespace, samples="samples" in names)


class Followers:
    """All subscribers to decisions. ``on_samples`` is called when a subscriber to samples is added."""

    __slots__ = ("_on_samples", "_requests")

    def __init__(self, on_samples: Callable[[], None] = lambda: None) -> None:
        self._requests: dict[Write, FollowRequest] = {}
        self._on_samples = on_samples

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def has_sample_subscriber(self) -> bool:
        """Whether any subscriber wants samples of all decisions."""
        return any(request.samples for request in self._requests.values())

    def add(self, request: FollowRequest, write: Write) -> Callable[[], None]:
        """Add a subscriber; the returned function removes it."""
        self._requests[write] = request
        if request.samples:
            self._on_samples()

        def end() -> None:
            self._requests.pop(write, None)

        return end

    def send(self, event: str, key: RevisionKey, body: bytes) -> None:
        """Send an event to its subscribers."""
        data = event_bytes(event, body)
        for write, request in list(self._requests.items()):
            if request.lets_through(event, key) and not write(data):
                self._requests.pop(write, None)


def event_bytes(event: str, body: bytes) -> bytes:
    """Encode a server-sent event; ``body`` is JSON without line breaks."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), body)


class PolicyBook:
    """The costs of each revision under its policy, and under Knative's.

    ``keys`` returns the known revisions, ``scaler`` a revision's scaler, or None.
    """

    def __init__(
        self, *, keys: Callable[[], Iterable[RevisionKey]], scaler: Callable[[RevisionKey], Scaler | None]
    ) -> None:
        self._keys = keys
        self._scaler = scaler

    def costs(self, key: RevisionKey, now_s: float) -> PolicyCosts | None:
        """The costs of a revision under its policy, and under Knative's; None if its class has no policy."""
        scaler = self._scaler(key)
        return None if scaler is None or scaler.shadow is None else scaler.shadow.costs(now_s)

    def encoded(self, names: Mapping[str, str], *, now_s: float) -> bytes:
        """The costs as a JSON list; ``namespace`` and ``revision`` filter it, ``curve`` adds hazard curves."""
        request = subscription_of(names)
        stories = (
            self._story(key, has_curve="curve" in names, now_s=now_s)
            for key in self._keys()
            if request.lets_through("decision", key)
        )
        return msgspec.json.encode([story for story in stories if story is not None])

    def _story(self, key: RevisionKey, *, has_curve: bool, now_s: float) -> PolicyStory | None:
        scaler = self._scaler(key)
        if scaler is None or scaler.shadow is None or scaler.learner is None:
            return None
        costs = scaler.shadow.costs(now_s)
        since_s = scaler.learner.idle_since_s
        running, learner = scaler.policy.name, scaler.learner
        return PolicyStory(
            namespace=key[0],
            revision=key[1],
            policy=running,
            shadow_scale=scaler.shadow.scale,
            costs=costs,
            sentence=savings_sentence(costs, running=running),
            idle_since_wall_s=None if since_s is None else since_s + scaler.shadow.wall_offset_s,
            curve=learner.curve() if has_curve and isinstance(learner, AdaptivePolicy) else None,
        )


class DecisionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A new decision, made at ``at_wall_s`` (seconds since the epoch).

    ``entry`` is its record in the history, None for a decision that changes nothing and is not sampled.
    """

    revision: ScaledRevision
    scaler: Scaler
    outcome: ScalerOutcome
    entry: HistoryEntry | None
    at_wall_s: float


class ExplainedDecision(DecisionLine, frozen=True, kw_only=True):
    """A stored decision with its explanation."""

    entry: HistoryEntry = msgspec.field(name="told")


def explained(key: tuple[str, str], entry: HistoryEntry, sentence: str = "") -> ExplainedDecision:
    """Add the explanation to a stored decision."""
    sentence = sentence or explain(entry.outcome)
    return ExplainedDecision(namespace=key[0], revision=key[1], sentence=sentence, entry=entry)


class DecisionPublisher:
    """Publishes decisions to ``log`` (lines) and ``change`` (a revision and a sentence). None disables either."""

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

    def publish(self, event: DecisionEvent) -> None:
        """Publish a decision without awaiting."""
        key, entry = event.revision.key, event.entry
        is_change = entry is not None and not entry.repeated_count and event.outcome.apply_count is not None
        wants_samples = bool(self._followers) and self._followers.has_sample_subscriber
        is_explained = wants_samples or (entry is not None and bool(self._followers)) or is_change
        sentence = explain(event.outcome) if is_explained else ""
        if entry is not None:
            self._log_entry(event, entry)
            if is_change and self._change is not None:
                self._change(event.revision, sentence)
            if self._followers:
                self._followers.send("decision", key, self._encode(explained(key, entry, sentence)))
        if wants_samples:
            valid_s = REST_MAX_S if event.scaler.is_idle else 0.0
            pods, at_wall_s = event.scaler.pods, event.at_wall_s
            sample = sample_of(event.outcome, pods, sentence, key=key, at_wall_s=at_wall_s, valid_s=valid_s)
            self._followers.send("sample", key, self._encode(sample))

    def _log_entry(self, event: DecisionEvent, entry: HistoryEntry) -> None:
        if self._log is not None:
            namespace, name = event.revision.key
            record = DecisionRecord(namespace=namespace, revision=name, entry=entry, windows=event.scaler.windows())
            self._log(self._encode(record))


class DecisionBook:
    """Serves past and future decisions over HTTP. ``policies`` has the costs of policies."""

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

    def encoded(self, names: Mapping[str, str]) -> bytes:
        """Decisions as a JSON list, oldest first.

        ``namespace``, ``revision`` and ``since`` (seconds since the epoch) filter the list.
        """
        return msgspec.json.encode(self._find(names))

    def subscribe(self, names: Mapping[str, str], write: Write) -> Callable[[], None]:
        """Pass events to ``write``, optionally with the past ones from ``since`` on; return a function that ends this."""
        if "since" in names:
            for event in self._find(names):
                write(event_bytes("decision", msgspec.json.encode(event)))
        return self._followers.add(subscription_of(names), write)

    def _find(self, names: Mapping[str, str]) -> list[ExplainedDecision]:
        request, since_s = subscription_of(names), _seconds(names.get("since", ""))
        events = [
            explained(key, decision)
            for key in self._keys()
            if request.lets_through("decision", key)
            for decision in self._decisions(key)
            if decision.at_wall_s >= since_s
        ]
        return sorted(events, key=lambda event: event.entry.since_wall_s)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
