"""Parses gauges of an app, from ORCA headers of its responses and from its metrics page.

Input: header lines of responses, and pages in Prometheus' text format. Output: the gauges to report. The app is not
trusted: names, values and their number are bounded, and malformed gauges are omitted. Only lines of gauges that the
revision chose are parsed; a page of 100 KB costs one text search. prometheus-client's parser would read every line, and
the sidecar does not contain it.

A gauge from a page expires after three seconds. A gauge from a header expires after a minute, because responses may be
rare.
"""

import math
import re
from collections.abc import Iterator, Sequence

import msgspec

from serving.core.model.errors import UNREADABLE
from serving.core.model.stat import GAUGES_MAX

_HEADER = re.compile(rb"^endpoint-load-metrics:[ \t]*([^\r\n]{1,2048})", re.IGNORECASE | re.MULTILINE)
# Both spellings of the header name contain it; finding it is far cheaper than the regular expression.
_MARK = b"ndpoint-"
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:.-]{0,62}", re.ASCII)
_PREFIX = "named_metrics."
_VALUE_MAX = 1e12
# Older values, in seconds, than a stable window do not describe the present.
_HEADER_VALID_S = 60.0
# A page is read each second, so two readings may fail.
_PAGE_VALID_S = 3.5
# Most lines parsed for one gauge: a line per label set, and lines of longer names with the same prefix.
_LINES_MAX = 1000
# After a name: labels, with any characters in quotes; the value; and an ignored timestamp. Possessive quantifiers, so
# that each byte is scanned once for any input.
_SAMPLE = re.compile(
    rb'(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\[^\n])*+")*+\})?[ \t]++'
    rb"([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)(?:[ \t]++-?[0-9]++(?:\.[0-9]++)?)?[ \t]*+\r?(?:\n|$)"
)

REQUEST_REPORT = (b"endpoint-load-metrics-format", b"json")
"""The request header by which model servers add a load report to the response."""


def read_gauges(value: bytes) -> dict[str, float]:
    """The valid gauges in a header's value."""
    text = value.decode("latin-1").strip()
    kind, _, rest = text.partition(" ")
    pairs = _of_json(rest) if kind == "JSON" else _of_text(rest if kind == "TEXT" else text)
    gauges: dict[str, float] = {}
    for name, amount in pairs:
        short = name.removeprefix(_PREFIX)
        if len(gauges) < GAUGES_MAX and _NAME.fullmatch(short) and 0 <= amount <= _VALUE_MAX:
            gauges[short] = amount
    return gauges


def read_page(page: bytes, names: Sequence[str]) -> dict[str, float]:
    """The named gauges on a metrics page. A gauge with several label sets is summed.

    A gauge with a malformed, negative or infinite line is ignored, because its sum would be incomplete.
    """
    gauges: dict[str, float] = {}
    page = b"\n" + page
    for name in names:
        values = list(_samples(page, b"\n" + name.encode()))
        total = sum(values)
        # Also false for NaN.
        if values and min(values) >= 0 and total <= _VALUE_MAX:
            gauges[name] = total
    return gauges


def _samples(page: bytes, name: bytes) -> Iterator[float]:
    at = page.find(name)
    for _ in range(_LINES_MAX):
        if at < 0:
            return
        end = at + len(name)
        # Shorter names are prefixes of longer ones.
        if page[end : end + 1] in (b"{", b" ", b"\t"):
            match = _SAMPLE.match(page, end)
            yield math.nan if match is None else float(match[1])
        at = page.find(name, end)
    yield math.nan


class AppGauges:
    """The gauges of one app. ``names`` are the gauges selected by the revision; they come first in a report."""

    __slots__ = ("_at_s", "_gauges", "_page", "_page_at_s", "names")

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)[:GAUGES_MAX]
        self._gauges: dict[str, float] = {}
        self._at_s = -math.inf
        self._page: dict[str, float] = {}
        self._page_at_s = -math.inf

    def record_headers(self, wire: bytes, now_s: float) -> None:
        """Read gauges from the header lines of a response."""
        if _MARK in wire:
            match = _HEADER.search(wire)
            if match is not None:
                self._gauges = read_gauges(match[1])
                self._at_s = now_s

    def record_page(self, page: bytes, now_s: float) -> None:
        """Read gauges from a metrics page."""
        self._page = read_page(page, self.names)
        self._page_at_s = now_s

    def current(self, now_s: float) -> dict[str, float]:
        """The gauges that have not expired. A value from the page takes precedence over one from headers."""
        reported = self._gauges if now_s - self._at_s < _HEADER_VALID_S else {}
        if not self.names:
            return reported
        page = self._page if now_s - self._page_at_s < _PAGE_VALID_S else {}
        gauges: dict[str, float] = {}
        for name in self.names:
            # ``vllm:num_requests_waiting`` on vLLM's page is ``num_requests_waiting`` in its headers.
            for source, key in ((page, name), (reported, name), (reported, name.rpartition(":")[2])):
                if key in source:
                    gauges[name] = source[key]
                    break
        for name, value in reported.items():
            if len(gauges) < GAUGES_MAX:
                gauges.setdefault(name, value)
        return gauges


def _of_text(text: str) -> Iterator[tuple[str, float]]:
    for pair in text.split(","):
        name, _, number = pair.partition("=")
        try:
            yield name.strip(), float(number)
        except ValueError:
            continue


def _of_json(text: str) -> Iterator[tuple[str, float]]:
    try:
        report = msgspec.json.decode(text, type=dict[str, float | dict[str, float]])
    except UNREADABLE:
        return
    for name, value in report.items():
        if isinstance(value, dict):
            yield from value.items()
        else:
            yield name, value
