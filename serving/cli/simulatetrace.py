"""``serving simulate --trace``: recorded workloads under one or several policies, as a table, a plot, or JSON."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from serving.model.errors import InvalidValue, Problem, SettingsError
from serving.settings.annotations import ScalingAnnotations
from serving.settings.autoscaler import AutoscalerSettings
from serving.settings.knob import fields_of
from serving.simulator.compare import (
    PolicyReport,
    ServiceTimes,
    Workload,
    at_equal_pod_seconds,
    report_of,
)
from serving.simulator.policies import POLICIES, DialPosition
from serving.simulator.trace import ArrivalPlacement, TraceWindow, read_trace

__all__ = ["changed_settings", "compare_policies", "known_policies", "read_service_times", "read_workloads"]

_PLOT_COLUMNS = 48
_BAR = "█"
_SERVICE_HEADER = ["function", "mean_s", "p50_s", "p99_s"]


def changed_settings(settings: AutoscalerSettings, pairs: Sequence[str]) -> AutoscalerSettings:
    """The settings with some replaced, each as ``key=value`` in the words of the ConfigMap. Raises ``SettingsError``."""
    fields = {field.knob.key: field for field in fields_of(AutoscalerSettings) if len(field.path) == 1}
    changes: dict[str, Any] = {}
    problems: list[Problem] = []
    for pair in pairs:
        key, _, text = pair.partition("=")
        field = fields.get(key)
        if field is None:
            problems.append(
                Problem(where=f"--set {key}", what="no such setting", expected="a key of config-autoscaler")
            )
            continue
        try:
            changes[field.name] = field.knob.read(text, plain=False)
        except InvalidValue as error:
            problems.append(Problem(where=f"--set {key}", what=f"{text!r} is not right", expected=error.expected))
    if problems:
        raise SettingsError(problems)
    changed = msgspec.structs.replace(settings, **changes)
    clashes = [Problem(where="--set", what=one.what, expected=one.expected) for one in changed.check()]
    if clashes:
        raise SettingsError(clashes)
    return changed


def read_service_times(text: str) -> ServiceTimes:
    """A number of seconds, or a CSV file with quantiles of each function. Raises ``SettingsError``."""
    try:
        constant_s = float(text)
    except ValueError:
        return _read_quantiles(Path(text))
    if not (math.isfinite(constant_s) and constant_s > 0):
        problem = Problem(where="--service-time", what=f"{text!r} is not right", expected="seconds above 0, or a file")
        raise SettingsError([problem])
    return ServiceTimes(constant_s=constant_s)


def _read_quantiles(path: Path) -> ServiceTimes:
    header = ",".join(_SERVICE_HEADER)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        problem = Problem(
            where=str(path), what=error.strerror or str(error), expected=f"seconds, or a CSV file: {header}"
        )
        raise SettingsError([problem]) from error
    if not rows or rows[0] != _SERVICE_HEADER:
        raise SettingsError([Problem(where=f"{path}:1", what="another header", expected=header)])
    found: dict[str, tuple[float, float]] = {}
    for line, row in enumerate(rows[1:], start=2):
        quantiles = _quantiles(row)
        if quantiles is None:
            what = f"{','.join(row)!r} is not right"
            raise SettingsError([Problem(where=f"{path}:{line}", what=what, expected="a function and seconds above 0")])
        found[row[0]] = quantiles
    return ServiceTimes(by_function=found)


def _quantiles(row: list[str]) -> tuple[float, float] | None:
    """The median and the 99th percentile of a row; None if the row is wrong."""
    try:
        _, _, p50, p99 = row
        p50_s, p99_s = float(p50), float(p99)
    except ValueError:
        return None
    return (p50_s, max(p50_s, p99_s)) if p50_s > 0 and math.isfinite(p99_s) else None


def read_workloads(
    path: Path, options: Mapping[str, Any], *, settings: AutoscalerSettings, scaling: ScalingAnnotations
) -> list[Workload]:
    """The workload of a trace, once for each seed. Raises ``SettingsError``."""
    service = read_service_times(options["service_time"])
    window = TraceWindow(from_s=options["from_s"], until_s=options["until_s"])
    placement, found = ArrivalPlacement(options["placement"]), []
    for seed in range(options["seed"], options["seed"] + options["seeds"]):
        functions, length_s = read_trace(path, placement=placement, seed=seed, window=window)
        found.append(
            Workload(
                functions=functions,
                length_s=length_s,
                settings=settings,
                scaling=scaling,
                service=service,
                container_concurrency=options["container_concurrency"],
                start_s=options["start_s"],
                seed=seed,
            )
        )
    return found


def compare_policies(
    workloads: Sequence[Workload], names: Sequence[str], *, jobs: int, equal_pod_seconds: bool, as_json: bool
) -> None:
    """Run each policy on each seed and print the means over the seeds."""
    reports = {name: _mean_report(workloads, name, jobs=jobs) for name in names}
    answer: dict[str, Any] = {"policies": reports}
    if equal_pod_seconds:
        first = reports[names[0]]
        answer["at_equal_pod_seconds"] = {}
        for name in names[1:]:
            curve = [_mean_report(workloads, name, jobs=jobs, position=one) for one in POLICIES[name].dial]
            answer["at_equal_pod_seconds"][name] = at_equal_pod_seconds(first, curve)
    if as_json:
        click.echo(msgspec.json.encode(answer).decode())
        return
    for line in _table(reports):
        click.echo(line)
    for name, change in answer.get("at_equal_pod_seconds", {}).items():
        click.echo(f"at the pod-seconds of {names[0]}, {name}: {_changes(change)}")


def known_policies(text: str) -> list[str]:
    """Names of policies, separated by commas. Raises ``SettingsError``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        what = f"{unknown[0]!r} is not a policy" if unknown else "no policy"
        raise SettingsError([Problem(where="--compare", what=what, expected="some of " + ", ".join(POLICIES))])
    return names


def _mean_report(
    workloads: Sequence[Workload], name: str, *, jobs: int, position: DialPosition | None = None
) -> PolicyReport:
    shown = name if position is None else f"{name}, {position.name}"
    found = []
    for workload in workloads:
        with click.progressbar(
            length=len(workload.functions), label=f"{shown}, seed {workload.seed}", file=sys.stderr
        ) as bar:
            found.append(
                report_of(workload, name, jobs=jobs, position=position, on_progress=lambda _, bar=bar: bar.update(1))  # type: ignore[misc]
            )
    return found[0] if len(found) == 1 else _mean(found)


def _mean(reports: Sequence[PolicyReport]) -> PolicyReport:
    values = [msgspec.to_builtins(one) for one in reports]
    mean: dict[str, Any] = {}
    for key in values[0]:
        if key == "per_revision":
            mean[key] = {name: sum(one[key][name] for one in values) / len(values) for name in values[0][key]}
        else:
            total = sum(one[key] for one in values) / len(values)
            mean[key] = round(total) if isinstance(values[0][key], int) else total
    return msgspec.convert(mean, PolicyReport)


def _table(reports: Mapping[str, PolicyReport]) -> list[str]:
    lines = [
        f"{'policy':<12} {'cold':>9} {'starts':>9} {'pod-hours':>10} {'wasted':>8} {'p99 wait':>9} {'late':>7} {'flaps/h':>9}"
    ]
    for name, one in reports.items():
        wasted = one.wasted_pod_seconds / one.pod_seconds if one.pod_seconds else 0.0
        lines.append(
            f"{name:<12} {one.cold_requests:>9} {one.pod_starts:>9} {one.pod_seconds / 3600:>10.1f} {wasted:>7.0%} "
            f"{one.wait_p99_s:>7.2f} s {one.late_share:>7.2%} {one.flaps_per_hour:>9.1f}"
        )
    for title, value in (("cold requests", "cold_requests"), ("pod-seconds", "pod_seconds")):
        top = max(getattr(one, value) for one in reports.values()) or 1
        lines.append("")
        lines.append(title)
        for name, one in reports.items():
            amount = getattr(one, value)
            lines.append(f"{name:>12} {_BAR * round(amount / top * _PLOT_COLUMNS)} {amount:.0f}")
    return lines


def _changes(change: msgspec.Struct) -> str:
    words = {"cold_change": "cold", "wait_p99_change": "p99 wait", "late_change": "late", "flaps_change": "flaps"}
    shown = []
    for name, word in words.items():
        value = getattr(change, name)
        shown.append(f"{word} {'beyond its curve' if value is None else f'{value:+.0%}'}")
    return ", ".join(shown)
