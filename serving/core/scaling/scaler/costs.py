"""Costs of two policies over the last day, by hour: pod-seconds, and requests that found no ready pod.

Input: costs with the time at which they arose, in seconds since the epoch. Output: their sums over the last 24 hours,
and the hours as text for a revision's annotation. Older hours are dropped.
"""

import math
from array import array

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.revisionnumbers import PolicyCosts

_HOUR_S = 3600.0
_HOURS = 24
# Columns of an hour: pod-seconds and cold requests of the adaptive policy, then of Knative's.
_WIDTH = 4
_COST_MAX = 1e12


class _HourlyCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hourly costs as stored in an annotation, by hour since the epoch.

    Each hour has the pod-seconds and cold requests of the adaptive or a user's policy, then those of Knative's.
    """

    since_s: float
    hours: dict[int, tuple[float, float, float, float]]


class DayCosts:
    """The costs of one revision in the last 24 hours."""

    __slots__ = ("_columns", "_hour", "_since_s")

    def __init__(self, wall_s: float) -> None:
        # In single precision an hour of 1,000 pods is exact to 200 of 3,600,000 pod-seconds.
        self._columns = array("f", bytes(4 * _HOURS * _WIDTH))
        self._hour = math.floor(wall_s / _HOUR_S)
        self._since_s = wall_s

    @property
    def hour(self) -> int:
        """The current hour, in hours since the epoch."""
        return self._hour

    def add_pods(self, adaptive_pod_seconds: float, knative_pod_seconds: float, *, wall_s: float) -> None:
        """Count the pod-seconds of both policies up to now."""
        at = self._place(wall_s)
        self._columns[at] += adaptive_pod_seconds
        self._columns[at + 2] += knative_pod_seconds

    def add_cold(self, adaptive_cold_requests: float, knative_cold_requests: float, *, wall_s: float) -> None:
        """Count cold requests of both policies now."""
        at = self._place(wall_s)
        self._columns[at + 1] += adaptive_cold_requests
        self._columns[at + 3] += knative_cold_requests

    def total(self, wall_s: float) -> PolicyCosts:
        """The sum over the last 24 hours."""
        self._place(wall_s)
        pod_seconds, cold, knative_pod_seconds, knative_cold = (
            sum(self._columns[column::_WIDTH]) for column in range(_WIDTH)
        )
        first_s = max(self._since_s, (self._hour - _HOURS + 1) * _HOUR_S)
        return PolicyCosts(
            adaptive_pod_seconds=pod_seconds,
            adaptive_cold_requests=cold,
            knative_pod_seconds=knative_pod_seconds,
            knative_cold_requests=knative_cold,
            covered_s=max(0.0, wall_s - first_s),
        )

    def dump(self) -> str:
        """The hourly costs as text, as input for ``load``."""
        rows = {hour: self._row(hour) for hour in range(self._hour - _HOURS + 1, self._hour + 1)}
        return msgspec.json.encode(
            _HourlyCosts(round(self._since_s, 1), {hour: row for hour, row in rows.items() if any(row)})
        ).decode()

    def load(self, text: str) -> None:
        """Restore the text of ``dump``. Raises ``InvalidValue``."""
        expected = "costs by hour since the epoch, as JSON"
        try:
            saved = msgspec.json.decode(text, type=_HourlyCosts)
        except UNREADABLE as error:
            raise InvalidValue(text=text, expected=expected) from error
        if not saved.hours or not all(0 <= cost <= _COST_MAX for row in saved.hours.values() for cost in row):
            raise InvalidValue(text=text, expected=expected)
        self._hour = max(saved.hours)
        self._since_s = saved.since_s
        self._columns = array("f", bytes(4 * _HOURS * _WIDTH))
        for hour, row in saved.hours.items():
            if hour > self._hour - _HOURS:
                at = hour % _HOURS * _WIDTH
                self._columns[at : at + _WIDTH] = array("f", row)

    def _place(self, wall_s: float) -> int:
        """The index of the current hour's column. After the clock jumped back, all stored hours age from then on."""
        hour = math.floor(wall_s / _HOUR_S)
        for passed in range(max(self._hour, hour - _HOURS) + 1, hour + 1):
            at = passed % _HOURS * _WIDTH
            self._columns[at : at + _WIDTH] = array("f", (0.0,) * _WIDTH)
        self._hour, self._since_s = hour, min(self._since_s, wall_s)
        return hour % _HOURS * _WIDTH

    def _row(self, hour: int) -> tuple[float, float, float, float]:
        at = hour % _HOURS * _WIDTH
        pod_seconds, cold, knative_pod_seconds, knative_cold = (
            round(value, 1) for value in self._columns[at : at + _WIDTH]
        )
        return pod_seconds, cold, knative_pod_seconds, knative_cold
