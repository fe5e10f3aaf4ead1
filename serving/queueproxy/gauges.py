"""What an app reports of itself, for the queue-proxy to pass on: gauges in a response header.

Input: the header lines of the app's answers; output: the gauges that go into the pod's next report. The header is the one of
ORCA load reports, which Envoy, gRPC and model servers use: ``endpoint-load-metrics: TEXT queue_length=12,
named_metrics.gpu=0.4``. JSON is read too: ``JSON {"named_metrics": {"gpu": 0.4}}``. Names lose the prefix
``named_metrics.``. At most 16 gauges are kept, with names of at most 63 bytes and values from 0 to 10^12; others are
ignored, because what an app writes must not cost the autoscaler anything.
"""

import math
import re
from collections.abc import Iterator

import msgspec

from serving.model.stat import GAUGES_MAX

_HEADER = re.compile(rb"^endpoint-load-metrics:[ \t]*([^\r\n]{1,2048})", re.IGNORECASE | re.MULTILINE)
# Both spellings of the header's name have it; a search for it costs far less than the regular expression.
_MARK = b"ndpoint-"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}", re.ASCII)
_PREFIX = "named_metrics."
_VALUE_MAX = 1e12
# An app that answers nothing for a stable window says nothing about the present.
_VALID_S = 60.0


def read_gauges(value: bytes) -> dict[str, float]:
    """The gauges in a header's value; what is not well-formed is left out."""
    text = value.decode("latin-1").strip()
    kind, _, rest = text.partition(" ")
    pairs = _of_json(rest) if kind == "JSON" else _of_text(rest if kind == "TEXT" else text)
    found: dict[str, float] = {}
    for name, amount in pairs:
        short = name.removeprefix(_PREFIX)
        if len(found) < GAUGES_MAX and _NAME.fullmatch(short) and 0 <= amount <= _VALUE_MAX:
            found[short] = amount
    return found


class AppGauges:
    """The gauges of one app, as of its latest answer that had any."""

    __slots__ = ("_at_s", "_gauges")

    def __init__(self) -> None:
        self._gauges: dict[str, float] = {}
        self._at_s = -math.inf

    def __repr__(self) -> str:
        """One line."""
        return f"AppGauges({self._gauges})"

    def take(self, wire: bytes, now_s: float) -> None:
        """Read the header lines of an answer."""
        if _MARK in wire:
            match = _HEADER.search(wire)
            if match is not None:
                self._gauges, self._at_s = read_gauges(match[1]), now_s

    def current(self, now_s: float) -> dict[str, float]:
        """The gauges that still count."""
        return self._gauges if now_s - self._at_s < _VALID_S else {}


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
    except msgspec.DecodeError:
        return
    for name, value in report.items():
        if isinstance(value, dict):
            yield from value.items()
        else:
            yield name, value
