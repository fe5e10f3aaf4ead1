"""Reads workloads: recorded requests, counts per minute and rates (plain, gzip or xz), and steps of a rate.

Input: a file in one of four formats, selected by its header; output: the arrivals of each function, sorted. A trace of
counts has no times within a minute or interval: ``ArrivalPlacement`` selects the placement of arrivals. An unreadable
row is reported with the file, its line and the expected value.
"""

import array
import collections
import csv
import enum
import gzip
import io
import lzma
import math
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TextIO

import msgspec

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.traffic.prefixes import BLOCK_ENDS
from serving.core.traffic.prompttokens import BYTES_PER_TOKEN
from serving.net.aio.inputfile import open_input

TIME_MAX_S = 10 * 366 * 86_400.0
"""The maximum simulated time: ten years."""

# Maximum of requests per interval, and per trace: a day of the busiest published traces has a hundredth of it.
_COUNT_MAX, _REQUESTS_MAX = 10_000_000, 1_000_000_000
_RATE_MAX = 1_000_000.0
_MINUTE_S = 60.0
# Requests without a recorded function count as one function.
_UNNAMED = "(unnamed)"
# Maximum digits of a count.
_DIGITS = 20
# Maximum characters of a wrong row in a message.
_SHOWN_MAX = 60
# Line numbers and cells, without empty lines.
_Rows = Iterator[tuple[int, list[str]]]
_FORMATS = "one of: function,1,2,...; at_s,function,duration_s; at_s,count; at_s,input_tokens,output_tokens,blocks"
# The column of the function by those before the counts; the second are Azure Functions' (2019).
_NAME_COLUMNS = {("function",): 0, ("HashOwner", "HashApp", "HashFunction", "Trigger"): 2}

BLOCK_TOKENS = 512
"""Tokens of a block of a recorded prompt."""

_STEP = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)", re.ASCII)


class ArrivalPlacement(enum.StrEnum):
    """When requests arrive within their minute: at random, or at a fixed phase per function."""

    UNIFORM = "uniform"
    PHASE = "phase"


class TraceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a trace to read, in seconds; arrivals are relative to its start."""

    from_s: float = 0.0
    until_s: float = math.inf


class RecordedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function with recorded requests: sorted times in seconds, and durations, NaN if unknown."""

    name: str
    arrivals_s: "array.array[float]"
    durations_s: "array.array[float]"

    @property
    def request_count(self) -> int:
        """The number of requests."""
        return len(self.arrivals_s)

    def arrivals(self, seed: int) -> Iterator[tuple[float, float]]:
        """The times and durations. The seed has no effect."""
        del seed
        return zip(self.arrivals_s, self.durations_s, strict=True)


class CountedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function with counts of requests by interval. Starts and widths of the intervals are in seconds."""

    name: str
    starts_s: "array.array[float]"
    widths_s: "array.array[float]"
    counts: "array.array[int]"
    placement: ArrivalPlacement
    window: TraceWindow

    @property
    def request_count(self) -> int:
        """The number of requests, including those of a partly covered interval."""
        return sum(self.counts)

    def arrivals(self, seed: int) -> Iterator[tuple[float, float]]:
        """Generate random times within the intervals. Durations are unknown (NaN)."""
        random_of = random.Random(f"{seed}:{self.name}").random  # noqa: S311 - made-up times
        phase, from_s, until_s = random_of(), self.window.from_s, self.window.until_s
        for start_s, width_s, count in zip(self.starts_s, self.widths_s, self.counts, strict=True):
            if self.placement is ArrivalPlacement.UNIFORM:
                places = [random_of() for _ in range(count)]
            else:
                places = [(phase + index / count) % 1.0 for index in range(count)]
            places.sort()
            for place in places:
                at_s = start_s + place * width_s
                if from_s <= at_s < until_s:
                    yield at_s - from_s, math.nan


class RecordedPrompt(msgspec.Struct, frozen=True):
    """A request of a model server. ``blocks`` are the ids of the blocks of its prompt: equal ids are equal text."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]

    def body(self) -> bytes:
        """The beginning of a request body with this prompt, as long as the part that an activator reads ahead."""
        block_bytes = BLOCK_TOKENS * BYTES_PER_TOKEN
        count = BLOCK_ENDS[-1] // block_bytes + 1
        text = b"".join((b"%015d " % block) * (block_bytes // 16) for block in self.blocks[:count])
        return (b'{"model":"m","messages":[{"role":"user","content":"' + text)[: BLOCK_ENDS[-1]]


class PromptTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The prompts of one model server, sorted by time."""

    name: str
    prompts: Sequence[RecordedPrompt]

    @property
    def request_count(self) -> int:
        """The number of prompts."""
        return len(self.prompts)

    def arrivals(self, seed: int) -> Iterator[tuple[float, float]]:
        """The times, each with the number of the prompt in place of a duration. The seed has no effect."""
        del seed
        return ((prompt.at_s, float(number)) for number, prompt in enumerate(self.prompts))


class FunctionTrace(Protocol):
    """The requests of one function."""

    @property
    def name(self) -> str:
        """A unique name within a workload."""

    @property
    def request_count(self) -> int:
        """The number of requests, possibly approximate."""

    def arrivals(self, seed: int) -> Iterator[tuple[float, float]]:
        """Times and durations in seconds, sorted by time; NaN for an unknown duration."""


def read_trace(
    path: Path, *, placement: ArrivalPlacement = ArrivalPlacement.UNIFORM, window: TraceWindow | None = None
) -> tuple[list[FunctionTrace], float]:
    """The functions of a trace, and its length in seconds. Raises ``SettingsError``."""
    window = window or TraceWindow()
    try:
        with _opened(path) as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            rows = ((line, row) for line, row in enumerate(reader, start=2) if row)
            trace: tuple[list[FunctionTrace], float] | None = None
            if columns := _columns(header):
                trace = _per_minute(path, rows, columns, placement=placement, window=window)
            elif header == ["at_s", "function", "duration_s"]:
                trace = _requests(path, rows, window=window)
            elif header == ["at_s", "count"]:
                trace = _rate(path, rows, placement=placement, window=window)
            elif header == ["at_s", "input_tokens", "output_tokens", "blocks"]:
                trace = _prompts(path, rows, window=window)
            if trace is not None:
                total = sum(function.request_count for function in trace[0])
                if total > _REQUESTS_MAX:
                    raise _wrong(path, 1, f"{total} requests", expected=f"a part with at most {_REQUESTS_MAX} of them")
                return trace
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise SettingsError(
            [
                Problem(
                    where=str(path),
                    what=(error.strerror if isinstance(error, OSError) else "") or str(error),
                    expected="a trace that can be read",
                )
            ]
        ) from error
    raise _wrong(path, 1, ",".join(header[:4]), expected=_FORMATS)


def _opened(path: Path) -> TextIO:
    file = open_input(path)
    if path.suffix not in {".xz", ".gz"}:
        return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    # These functions open and close the file.
    file.close()
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig", newline="")
    return gzip.open(path, "rt", encoding="utf-8-sig", newline="")


def _wrong(path: Path, line: int, text: str, *, expected: str) -> SettingsError:
    shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
    return SettingsError([Problem(where=f"{path}:{line}", what=f"{shown!r} is not right", expected=expected)])


class _Columns(msgspec.Struct, frozen=True):
    """The columns of counts per minute: that of the function, the first count, and the number of counts."""

    name: int
    first: int
    minutes: int


def _columns(header: Sequence[str]) -> _Columns | None:
    """The columns of ``function,1,2,...``, or of Azure Functions' traces; None for another header."""
    first = next((column for column, cell in enumerate(header) if cell.isdecimal()), len(header))
    minutes, name = len(header) - first, _NAME_COLUMNS.get(tuple(header[:first]))
    is_counted = minutes > 0 and all(cell.isdecimal() for cell in header[first:])
    return _Columns(name, first, minutes) if is_counted and name is not None else None


def _per_minute(
    path: Path, rows: _Rows, columns: _Columns, *, placement: ArrivalPlacement, window: TraceWindow
) -> tuple[list[FunctionTrace], float]:
    functions: list[FunctionTrace] = []
    seen: collections.Counter[str] = collections.Counter()
    minutes = columns.minutes
    for line, cells in rows:
        row = [cells[columns.name], *cells[columns.first :]] if len(cells) > columns.first else cells
        if len(row) != minutes + 1:
            what = ",".join(row) if len(row) < 3 else f"{row[0]} with {len(row) - 1} counts"
            raise _wrong(path, line, what, expected=f"a function and {minutes} counts, as the header says")
        name = row[0] or _UNNAMED
        seen[name] += 1
        if seen[name] > 1:
            # Published traces have a row for each trigger of a function; each row is scaled separately.
            name = f"{name}#{seen[name]}"
        starts_s, counts = array.array("d"), array.array("q")
        for minute, text in enumerate(row[1:]):
            if text == "0":
                continue
            if not (text.isdecimal() and text.isascii() and len(text) < _DIGITS and int(text) <= _COUNT_MAX):
                expected = f"a whole number of requests in minute {minute + 1} of {name}, of at most {_COUNT_MAX}"
                raise _wrong(path, line, text, expected=expected)
            start_s = minute * _MINUTE_S
            if start_s < window.until_s and start_s + _MINUTE_S > window.from_s:
                starts_s.append(start_s)
                counts.append(int(text))
        widths_s = array.array("d", [_MINUTE_S]) * len(starts_s)
        functions.append(
            CountedFunction(
                name=name, starts_s=starts_s, widths_s=widths_s, counts=counts, placement=placement, window=window
            )
        )
    return functions, _length(minutes * _MINUTE_S, window)


def _requests(path: Path, rows: _Rows, *, window: TraceWindow) -> tuple[list[FunctionTrace], float]:
    by_function: dict[str, list[tuple[float, float]]] = {}
    last_s = 0.0
    for line, row in rows:
        request = _request(row)
        if request is None:
            raise _wrong(
                path,
                line,
                ",".join(row),
                expected=f"at_s,function,duration_s: seconds, a name or nothing, seconds or nothing, up to {TIME_MAX_S:g} s",
            )
        at_s, name, took_s = request
        last_s = max(last_s, at_s + (0.0 if math.isnan(took_s) else took_s))
        if window.from_s <= at_s < window.until_s:
            by_function.setdefault(name, []).append((at_s - window.from_s, took_s))
    functions: list[FunctionTrace] = []
    for name, pairs in by_function.items():
        pairs.sort()
        arrivals_s = array.array("d", [at_s for at_s, _ in pairs])
        durations_s = array.array("d", [took_s for _, took_s in pairs])
        functions.append(RecordedFunction(name=name, arrivals_s=arrivals_s, durations_s=durations_s))
    # A recording of requests includes the minute after the last arrival, in which its pods still exist.
    return functions, _length(last_s + _MINUTE_S, window)


def _prompts(path: Path, rows: _Rows, *, window: TraceWindow) -> tuple[list[FunctionTrace], float]:
    prompts: list[RecordedPrompt] = []
    last_s = 0.0
    for line, row in rows:
        prompt = _prompt(row)
        if prompt is None:
            expected = f"at_s,input_tokens,output_tokens,blocks: seconds up to {TIME_MAX_S:g}, and whole numbers"
            raise _wrong(path, line, ",".join(row), expected=expected)
        last_s = max(last_s, prompt.at_s)
        if window.from_s <= prompt.at_s < window.until_s:
            prompts.append(msgspec.structs.replace(prompt, at_s=prompt.at_s - window.from_s))
    prompts.sort(key=lambda prompt: prompt.at_s)
    trace = PromptTrace(name=path.name.split(".")[0], prompts=prompts)
    return [trace], _length(last_s + _MINUTE_S, window)


def _prompt(row: list[str]) -> RecordedPrompt | None:
    """The prompt in a row; None for an invalid row."""
    try:
        at_s, read, written, blocks = row
        prompt = RecordedPrompt(
            float(at_s), int(read[:_DIGITS]), int(written[:_DIGITS]), tuple(map(int, blocks.split()))
        )
    except ValueError:
        return None
    is_counted = 0 <= prompt.input_tokens <= _COUNT_MAX and 0 <= prompt.output_tokens <= _COUNT_MAX
    return prompt if 0 <= prompt.at_s <= TIME_MAX_S and is_counted else None


def _request(row: list[str]) -> tuple[float, str, float] | None:
    """The time, function and duration in a row; None for an invalid row."""
    try:
        at_s, name, duration = row
        at, took_s = float(at_s), float(duration) if duration else math.nan
    except ValueError:
        return None
    is_duration = not duration or 0 <= took_s <= TIME_MAX_S
    return (at, name or _UNNAMED, took_s) if 0 <= at <= TIME_MAX_S and is_duration else None


def _rate(
    path: Path, rows: _Rows, *, placement: ArrivalPlacement, window: TraceWindow
) -> tuple[list[FunctionTrace], float]:
    steps: list[tuple[float, int]] = []
    for line, row in rows:
        step = _step(row)
        if step is None or (steps and step[0] <= steps[-1][0]):
            expected = (
                f"at_s,count: seconds in rising order up to {TIME_MAX_S:g}, and a whole number up to {_COUNT_MAX}"
            )
            raise _wrong(path, line, ",".join(row), expected=expected)
        steps.append(step)
    starts_s, widths_s, counts = array.array("d"), array.array("d"), array.array("q")
    width_s = _MINUTE_S
    for index, (start_s, count) in enumerate(steps):
        # The last interval is as wide as the previous one.
        width_s = steps[index + 1][0] - start_s if index + 1 < len(steps) else width_s
        if count and start_s < window.until_s and start_s + width_s > window.from_s:
            starts_s.append(start_s)
            widths_s.append(width_s)
            counts.append(count)
    end_s = steps[-1][0] + width_s if steps else 0.0
    name = path.name.split(".")[0]
    function = CountedFunction(
        name=name, starts_s=starts_s, widths_s=widths_s, counts=counts, placement=placement, window=window
    )
    return [function], _length(end_s, window)


def _step(row: list[str]) -> tuple[float, int] | None:
    """The start of an interval, and its number of requests; None for an invalid row."""
    try:
        at_s, count = row
        step = float(at_s), int(count[:_DIGITS])
    except ValueError:
        return None
    return step if 0 <= step[0] <= TIME_MAX_S and 0 <= step[1] <= _COUNT_MAX else None


def _length(end_s: float, window: TraceWindow) -> float:
    return max(0.0, min(end_s, window.until_s) - window.from_s)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From ``from_s`` on, ``rate`` requests per second arrive, until the next step."""

    from_s: float
    rate: float


def parse_steps(text: str) -> list[Step]:
    """Steps in a text such as "0:0 10:50 60:0": 50 requests per second from second 10 on, 0 from second 60 on."""
    steps: list[Step] = []
    for word in text.split():
        match = _STEP.fullmatch(word)
        is_usable = match and float(match[1]) <= TIME_MAX_S and float(match[2]) <= _RATE_MAX
        if not match or not is_usable or (steps and float(match[1]) <= steps[-1].from_s):
            expected = f"SECOND:REQUESTS_PER_SECOND in rising order, up to {TIME_MAX_S:g}:{_RATE_MAX:g}"
            raise InvalidValue(text=word, expected=f'{expected}, as in "0:0 10:50 60:0"')
        steps.append(Step(from_s=float(match[1]), rate=float(match[2])))
    if not steps:
        raise InvalidValue(text=text, expected='at least one step, as in "10:50"')
    return steps


def arrivals(steps: Sequence[Step], until_s: float, dice: random.Random) -> Iterator[float]:
    """Random independent times of arrival up to ``until_s``, sorted, at the rate of each step."""
    ends = [step.from_s for step in steps[1:]] + [until_s]
    for step, end_s in zip(steps, ends, strict=True):
        at_s = step.from_s
        while step.rate > 0:
            at_s += dice.expovariate(step.rate)
            if at_s >= min(end_s, until_s):
                break
            yield at_s
