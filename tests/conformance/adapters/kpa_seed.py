"""Cases of the June 2018 autoscaler (knative/serving ea02baa), format in its spec, section 9.

An answer is compared on every decision: count and ok, whether it panics, the unrounded maximum of the panic, and
where the case says so the number of points kept.
"""

from collections.abc import Iterator
from typing import Any

from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.classic.classic import ClassicScaler
from serving.core.settings.classic import ORIGINAL, ClassicSettings
from tests.conformance.compare import same

Case = dict[str, Any]
MAX_PANIC_RELATIVE = 1e-9


def expected(case: Case) -> dict[str, Any]:
    """The parts of the case with expected results; one 0 for max_panic stands for "always 0"."""
    wanted: dict[str, Any] = {key: case[key] for key in ("expect", "panic", "max_panic", "kept") if key in case}
    if wanted.get("max_panic") == 0:
        wanted["max_panic"] = [0] * len(case["expect"])
    if isinstance(wanted.get("panic"), int):
        wanted["panic"] = [wanted["panic"]] * len(case["expect"])
    return wanted


def agrees(wanted: dict[str, Any], fields: dict[str, Any]) -> bool:
    """Whether both are equal: all exactly, but the unrounded maximum."""
    return all(
        same(wanted[key], fields[key], relative=MAX_PANIC_RELATIVE if key == "max_panic" else 0.0) for key in wanted
    )


def result_of(case: Case) -> dict[str, Any]:
    """Feed the events in order and record each result of "scale"."""
    config = case["config"]
    settings = ClassicSettings(
        stable_window_s=config["stable_window_s"],
        panic_window_s=config["panic_window_s"],
        max_scale_up_rate=config["max_scale_up_rate"],
        scale_to_zero_threshold_s=config["scale_to_zero_threshold_s"],
        quirks=ORIGINAL,
    )
    scaler = ClassicScaler(started_s=0.0)
    entry: dict[str, list[Any]] = {"expect": [], "panic": [], "max_panic": [], "kept": []}
    for kind, at_s, *rest in case["events"]:
        if kind == "scale":
            decision = scaler.decide(settings, target_concurrency=config["target_concurrency"], now_s=at_s)
            entry["expect"].append([0, False] if isinstance(decision, NoData) else [decision.desired_count, True])
            entry["panic"].append(int(scaler.is_panicking))
            entry["max_panic"].append(scaler.panic_count_max)
            entry["kept"].append(scaler.point_count)
        else:
            for stat in _stats(kind, at_s, rest):
                scaler.record(stat)
    return entry


def _stats(kind: str, at_s: float, rest: list[Any]) -> Iterator[Stat]:
    if kind == "stat":
        pod, concurrency, request_count = rest
        yield Stat(pod=pod, at_s=at_s, concurrency=concurrency, request_count=request_count)
        return
    first, count, concurrency, request_count = rest
    for index in range(count):
        yield Stat(
            pod=f"p{first + index}",
            at_s=at_s,
            concurrency=concurrency[index] if isinstance(concurrency, list) else concurrency,
            request_count=request_count[index] if isinstance(request_count, list) else request_count,
        )
