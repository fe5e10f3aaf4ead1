"""Windows of today's autoscaler: timed (linear) and weighted averages, and the maximum of the scale-down delay.

Source: knative/serving 98e5ef90, pkg/autoscaler/aggregation, run for these cases. Translated: events ``record t v``,
``query t`` and ``resize window`` of kinds timed and weighted, answered by [average, empty 0 or 1] a query, where
``resize_sees_data_as`` says whether the wall clock at a resize finds the data fresh or stale; ``record t v`` of kind
max, answered by the maximum after each.
"""

from typing import Any

from serving.core.scaling.kpa.delay import DelayWindow, slot_count
from serving.core.scaling.kpa.window import window_of
from serving.core.scaling.spec import WindowKind
from serving.core.settings.autoscaler import ORIGINAL
from tests.conformance.compare import same

# The tolerance that the format states for averages.
_TOLERANCE = 1e-6
# Later than any case by more than the longest window, so that all data is stale.
_STALE_LATER_S = 1e6

_KINDS = {"timed": WindowKind.LINEAR, "weighted": WindowKind.WEIGHTED_EXPONENTIAL}


def expected(case: dict[str, Any]) -> object:
    """The original's results."""
    return case["expect"]


def result_of(case: dict[str, Any]) -> object:
    """This project's results."""
    return _maxima(case) if case["kind"] == "max" else _averages(case)


def agrees(expected: object, value: object) -> bool:
    """Whether both are equal: averages within the tolerance, flags and maxima exactly."""
    return same(expected, value, absolute=_TOLERANCE)


def _averages(case: dict[str, Any]) -> list[list[float]]:
    window = window_of(
        _KINDS[case["kind"]], case["window_s"], granularity_s=int(case["granularity_s"]), quirks=ORIGINAL
    )
    answers: list[list[float]] = []
    newest_s = 0.0
    for event, *values in case["events"]:
        if event == "record":
            at_s, value = values
            newest_s = max(newest_s, at_s)
            window.record(at_s, value)
        elif event == "resize":
            stale = case.get("resize_sees_data_as") == "stale"
            window.resize(values[0], newest_s + _STALE_LATER_S if stale else newest_s)
        else:
            answers.append([window.average(values[0]), int(window.is_empty(values[0]))])
    return answers


def _maxima(case: dict[str, Any]) -> list[int]:
    slot_s = int(case["granularity_s"])
    slots = slot_count(case["window_s"], slot_s=slot_s)
    window = DelayWindow()
    maxima: list[int] = []
    for _, at_s, count in case["events"]:
        window = window.record(count, slot_count=slots, now_s=at_s, slot_s=slot_s)
        maxima.append(window.maximum)
    return maxima
