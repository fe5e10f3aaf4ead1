"""What the dashboard knows: objects with a version each, the last decisions, and an hour of numbers.

Pure: objects, samples, decisions and readings of metrics go in; what has changed since a version comes out, so that each
page gets what is new for it. ``tick`` makes one row of each revision out of what was told last.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from serving.dashboard.history import History
from serving.dashboard.nodes import Nodes
from serving.dashboard.requests import Seen
from serving.dashboard.views import View
from serving.settings.placement import PlacementSettings

__all__ = ["Board"]

_DECISIONS_MAX = 200
# Deletions that are remembered for pages that have not heard of them; a page that is older starts anew.
_GONE_MAX = 10_000
# A revision of which nobody told for so long is drawn as unknown, in seconds: decisions come each 2 s.
_SAMPLE_VALID_S = 10.0

_Key = tuple[str, str]
"""Kind ("service", "revision", "pod") and "namespace/name"."""


class Board:
    """All of it, of one cluster. ``rows_max`` bounds the numbers of each revision."""

    def __init__(self, rows_max: int, placement: PlacementSettings | None = None) -> None:
        self.nodes = Nodes(placement or PlacementSettings())
        self.version = 0
        self.history = History(rows_max)
        self._views: dict[_Key, tuple[int, View]] = {}
        self._gone: deque[tuple[int, _Key]] = deque(maxlen=_GONE_MAX)
        self._pods: dict[str, dict[str, View]] = {}
        self._revision_of_pod: dict[str, str] = {}
        self._samples: dict[str, Mapping[str, Any]] = {}
        self._requests: Mapping[str, Seen] | None = None
        self._decisions: dict[str, deque[Mapping[str, Any]]] = {}
        self._rows: dict[str, list[float | None]] = {}

    def __repr__(self) -> str:
        return f"Board({len(self._views)} objects at {self.version}, {self.history})"

    def put(self, kind: str, key: str, view: View | None) -> None:
        """An object as it is now; None when it is gone."""
        if kind == "pod":
            self._put_pod(key, view)
            return
        before = self._views.get((kind, key))
        if view is None:
            if before is not None:
                self.version += 1
                del self._views[kind, key]
                self._gone.append((self.version, (kind, key)))
                self._forget(kind, key)
        elif before is None or before[1] != view:
            self.version += 1
            self._views[kind, key] = (self.version, view)

    def sample(self, told: Mapping[str, Any]) -> None:
        """Numbers of a decision, as the autoscaler tells them."""
        self._samples[f"{told['namespace']}/{told['revision']}"] = told

    def decision(self, told: Mapping[str, Any]) -> View:
        """A decision as the autoscaler tells it; what the page gets of it."""
        key = f"{told['namespace']}/{told['revision']}"
        outcome = told["told"]["outcome"]
        wanted = outcome["gate"]["wanted"]
        seen = {
            "key": key,
            "at_s": told["told"]["since_wall_s"],
            "sentence": told["sentence"],
            "is_change": outcome["apply_count"] is not None,
            "wanted": wanted if isinstance(wanted, int) else None,
        }
        decisions = self._decisions.setdefault(key, deque(maxlen=_DECISIONS_MAX))
        # A stream that was cut off tells some again.
        if all(one["at_s"] != seen["at_s"] for one in decisions):
            decisions.append(seen)
        return seen

    def requests(self, seen: Mapping[str, Seen] | None) -> None:
        """What the activators counted since the tick before; None while none of them says anything."""
        self._requests = seen

    def tick(self, at_s: float) -> dict[str, list[float | None]]:
        """Make a row of each revision; those that are not as they were."""
        before = self._rows
        self._rows = {key: self._row(key, at_s) for kind, key in self._views if kind == "revision"}
        self.history.add(at_s, self._rows)
        return {key: row for key, row in self._rows.items() if row != before.get(key)}

    @property
    def rows(self) -> dict[str, list[float | None]]:
        """The last row of each revision."""
        return self._rows

    def since(self, version: int) -> list[View]:
        """Objects that changed after a version, and those that are gone since. 0 is all."""
        if self._gone and len(self._gone) == _GONE_MAX and version < self._gone[0][0]:
            version = 0
        changed = [
            {"kind": kind, "key": key, "view": view} for (kind, key), (at, view) in self._views.items() if at > version
        ]
        gone = [
            {"kind": kind, "key": key, "view": None}
            for at, (kind, key) in self._gone
            if at > version > 0 and (kind, key) not in self._views
        ]
        return gone + changed

    def pods(self, revision: str) -> list[View]:
        """The pods of a revision by name, with what runs in each; None where nobody told."""
        running = (self._samples.get(revision) or {}).get("pods", {})
        pods = self._pods.get(revision, {})
        return [{**pods[key], "running": running.get(pods[key]["name"])} for key in sorted(pods)]

    def decisions(self, revision: str) -> list[Mapping[str, Any]]:
        """The last decisions about a revision, oldest first."""
        return list(self._decisions.get(revision, ()))

    def last_decisions(self) -> dict[str, Mapping[str, Any]]:
        """The last decision about each revision."""
        return {key: decisions[-1] for key, decisions in self._decisions.items()}

    def _put_pod(self, key: str, view: View | None) -> None:
        revision = None if view is None else f"{view['namespace']}/{view['revision']}"
        before = self._revision_of_pod.pop(key, None)
        if before is not None:
            pods = self._pods.get(before, {})
            pods.pop(key, None)
            if not pods:
                self._pods.pop(before, None)
        if view is not None and revision is not None:
            self._pods.setdefault(revision, {})[key] = view
            self._revision_of_pod[key] = revision

    def _forget(self, kind: str, key: str) -> None:
        if kind == "revision":
            self._samples.pop(key, None)
            self._decisions.pop(key, None)

    def _row(self, key: str, at_s: float) -> list[float | None]:
        pods = self._pods.get(key, {}).values()
        ready_count = sum(pod["ready"] and not pod["ending"] for pod in pods)
        starting_count = sum(not pod["ready"] and not pod["ending"] for pod in pods)
        sample = self._samples.get(key)
        if sample is None or at_s - sample["at_wall_s"] > _SAMPLE_VALID_S:
            told: list[float | None] = [None] * 4
            desired = is_panic = None
        else:
            told = [sample[name] for name in ("running", "held", "target", "observed_stable")]
            desired, is_panic = sample["desired_count"], float(sample["is_panic"])
        seen = Seen() if self._requests is None else self._requests.get(key, Seen())
        if self._requests is not None:
            # The activators know how many wait; the autoscaler's number counts some that it was told of twice.
            told[1] = seen.waiting
        row = [*told, desired, float(ready_count), float(starting_count), is_panic, *seen.rates, *seen.quantiles_s]
        return [None if value is None else round(value, 4) for value in row]
