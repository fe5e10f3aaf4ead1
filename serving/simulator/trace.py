"""Reads recorded workloads: requests, counts a minute and rates, as plain text, gzip or xz.

Input: a file in one of three formats, which its header selects; output: the arrivals of each function, in order. A trace of
counts does not say when in its minute or interval a request came: ``ArrivalPlacement`` selects how arrivals are placed. A
row that cannot be read is reported with the file, its line and what was expected.
"""

import array
import csv
import enum
import gzip
import lzma
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from serving.model.errors import Problem, SettingsError

__all__ = ["ArrivalPlacement", "FunctionTrace", "TraceWindow", "read_trace"]

_MINUTE_S = 60.0
_FORMATS = "one of: function,1,2,...; at_s,function,duration_s; at_s,count"


class ArrivalPlacement(enum.StrEnum):
    """Where requests are put inside their minute: anywhere, or at a fixed phase of each function."""

    UNIFORM = "uniform"
    PHASE = "phase"


class TraceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a trace that is read, in seconds of it; arrivals are counted from its start."""

    from_s: float = 0.0
    until_s: float = math.inf


class FunctionTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The arrivals of one function in seconds, in order; ``durations_s`` beside them, not a number where unknown."""

    name: str
    arrivals_s: "array.array[float]"
    durations_s: "array.array[float] | None" = None


def read_trace(
    path: Path,
    *,
    placement: ArrivalPlacement = ArrivalPlacement.UNIFORM,
    seed: int = 1,
    window: TraceWindow | None = None,
) -> tuple[list[FunctionTrace], float]:
    """The functions of a trace, and how long it is in seconds. Raises ``SettingsError``."""
    window = window or TraceWindow()
    try:
        with _opened(path) as file:
            rows = csv.reader(file)
            header = next(rows, [])
            if header[:1] == ["function"] and len(header) > 1:
                return _per_minute(path, rows, len(header) - 1, placement=placement, seed=seed, window=window)
            if header == ["at_s", "function", "duration_s"]:
                return _requests(path, rows, window=window)
            if header == ["at_s", "count"]:
                return _rate(path, rows, seed=seed, window=window)
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise SettingsError([Problem(where=str(path), what=str(error), expected="a trace that can be read")]) from error
    raise _wrong(path, 1, ",".join(header[:4]), expected=_FORMATS)


def _opened(path: Path) -> TextIO:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8", newline="")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _wrong(path: Path, line: int, text: str, *, expected: str) -> SettingsError:
    return SettingsError([Problem(where=f"{path}:{line}", what=f"{text!r} is not right", expected=expected)])


def _per_minute(
    path: Path, rows: Iterator[list[str]], minutes: int, *, placement: ArrivalPlacement, seed: int, window: TraceWindow
) -> tuple[list[FunctionTrace], float]:
    found = []
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        if len(row) != minutes + 1:
            raise _wrong(path, line, f"{len(row) - 1} counts", expected=f"a name and {minutes} counts")
        dice = random.Random(f"{seed}:{row[0]}")  # noqa: S311 - made-up times
        phase_s = dice.random() * _MINUTE_S
        at: list[float] = []
        for minute, text in enumerate(row[1:]):
            if text == "0":
                continue
            if not text.isdigit():
                raise _wrong(path, line, text, expected="a whole number of requests")
            start_s, count = minute * _MINUTE_S, int(text)
            if placement is ArrivalPlacement.UNIFORM:
                at.extend(start_s + dice.random() * _MINUTE_S for _ in range(count))
            else:
                at.extend(start_s + (phase_s + index * _MINUTE_S / count) % _MINUTE_S for index in range(count))
        at.sort()
        found.append(FunctionTrace(name=row[0], arrivals_s=_within(at, window)))
    return found, _length(minutes * _MINUTE_S, window)


def _requests(path: Path, rows: Iterator[list[str]], *, window: TraceWindow) -> tuple[list[FunctionTrace], float]:
    by_function: dict[str, list[tuple[float, float]]] = {}
    last_s = 0.0
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        request = _request(row)
        if request is None:
            raise _wrong(path, line, ",".join(row), expected="seconds, a function, and seconds or nothing")
        at, name, took_s = request
        last_s = max(last_s, at)
        if window.from_s <= at < window.until_s:
            by_function.setdefault(name, []).append((at - window.from_s, took_s))
    found = []
    for name, pairs in by_function.items():
        pairs.sort()
        arrivals = array.array("d", [at for at, _ in pairs])
        found.append(
            FunctionTrace(name=name, arrivals_s=arrivals, durations_s=array.array("d", [took for _, took in pairs]))
        )
    return found, _length(last_s, window)


def _request(row: list[str]) -> tuple[float, str, float] | None:
    """The time, function and duration of a row; None if it is not a request."""
    try:
        at_s, name, duration = row
        at, took_s = float(at_s), float(duration) if duration else math.nan
    except ValueError:
        return None
    return (at, name, took_s) if at >= 0 and (math.isnan(took_s) or took_s >= 0) else None


def _step(row: list[str]) -> tuple[float, int] | None:
    """The start and the requests of an interval; None if the row is not an interval."""
    try:
        at_s, count = row
        step = float(at_s), int(count)
    except ValueError:
        return None
    return step if step[1] >= 0 else None


def _rate(
    path: Path, rows: Iterator[list[str]], *, seed: int, window: TraceWindow
) -> tuple[list[FunctionTrace], float]:
    steps: list[tuple[float, int]] = []
    for line, row in enumerate(rows, start=2):
        if not row:
            continue
        step = _step(row)
        if step is None or (steps and step[0] <= steps[-1][0]):
            raise _wrong(path, line, ",".join(row), expected="seconds in rising order, and a whole number")
        steps.append(step)
    dice = random.Random(seed)  # noqa: S311 - made-up times
    at: list[float] = []
    width_s = _MINUTE_S
    for index, (start_s, count) in enumerate(steps):
        if index + 1 < len(steps):
            width_s = steps[index + 1][0] - start_s
        if start_s < window.until_s and start_s + width_s > window.from_s:
            at.extend(sorted(start_s + dice.random() * width_s for _ in range(count)))
    end_s = steps[-1][0] + width_s if steps else 0.0
    return [FunctionTrace(name=path.name, arrivals_s=_within(at, window))], _length(end_s, window)


def _within(at: list[float], window: TraceWindow) -> "array.array[float]":
    if window.from_s <= 0 and math.isinf(window.until_s):
        return array.array("d", at)
    return array.array("d", [one - window.from_s for one in at if window.from_s <= one < window.until_s])


def _length(end_s: float, window: TraceWindow) -> float:
    return max(0.0, min(end_s, window.until_s) - window.from_s)
