"""The last hour of each revision as columns of numbers, one row each two seconds.

All revisions share the times. Numbers are 32-bit floats, a missing one is NaN: an hour of a revision is 115 kB. Old rows go
in bunches, so that a row costs an append a column.
"""

import math
from array import array
from collections.abc import Mapping, Sequence

COLUMNS = (
    *("running", "held", "target", "observed"),
    *("desired", "ready", "starting", "is_panic"),
    *("rps_2xx", "rps_3xx", "rps_4xx", "rps_5xx"),
    *("p50_s", "p95_s", "p99_s"),
)
"""The columns of a row: requests in flight, pod counts, responses a second by class, latencies in seconds."""

_BUNCH = 128


class RevisionHistory:
    """Rows of all revisions, at most ``rows_max`` of each."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._times = array("d")
        self._columns: dict[str, tuple[array[float], ...]] = {}

    def __repr__(self) -> str:
        return f"RevisionHistory({len(self._columns)} revisions, {len(self._times)} rows)"

    def add(self, at_s: float, rows: Mapping[str, Sequence[float | None]]) -> None:
        """Append one row per revision. A revision without a row is deleted with its history."""
        self._times.append(at_s)
        for key in [key for key in self._columns if key not in rows]:
            del self._columns[key]
        for key, row in rows.items():
            columns = self._columns.get(key)
            if columns is None:
                columns = self._columns[key] = tuple(array("f") for _ in COLUMNS)
            for column, value in zip(columns, row, strict=True):
                column.append(math.nan if value is None else value)
        if len(self._times) >= self._rows_max + _BUNCH:
            self._drop()

    def read(self, key: str) -> dict[str, list[float]]:
        """The columns of a revision by name, and ``at_s``; empty columns for an unknown revision."""
        columns = self._columns.get(key) or tuple(array("f") for _ in COLUMNS)
        count = min(len(columns[0]), self._rows_max)
        found = {name: list(column[len(column) - count :]) for name, column in zip(COLUMNS, columns, strict=True)}
        return {"at_s": list(self._times[len(self._times) - count :]), **found}

    def _drop(self) -> None:
        for column in (self._times, *(one for columns in self._columns.values() for one in columns)):
            del column[: max(0, len(column) - self._rows_max)]
