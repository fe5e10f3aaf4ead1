"""``serving tune``: the effect of a policy's dial on a recorded workload, and settings within a pod-seconds budget."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from serving.core.model.errors import InvalidValue, SettingsError
from serving.core.model.launch import USAGE_EXIT
from serving.core.model.quantity import parse_percent
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.knob import fields_of
from serving.tools.cli.client.resources import is_json, json_output_options
from serving.tools.cli.decisions.simulateinputs import (
    changed_settings,
    deciding_policy,
    runner_of,
    settings_pairs,
    workload_options,
)
from serving.tools.simulator.curve import POLICIES, CurvePoint, SimulatedPolicy, best_within
from serving.tools.simulator.report import PolicyReport, policy_table

_BASE = "knative"


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@workload_options
@click.option(
    "--budget",
    default="100%",
    show_default=True,
    help="Maximum pod-seconds, as a fraction of those with Knative's defaults.",
)
@click.option("--policy", default="default", show_default=True, help=f"Policy to tune: {', '.join(POLICIES)}.")
@json_output_options
@click.pass_context
def tune(context: click.Context, /, *, changes: tuple[str, ...], budget: str, policy: str, **options: Any) -> None:  # noqa: ANN401
    """Run a policy with several settings on a recorded workload, and print the best settings within a budget."""
    try:
        share = parse_percent(budget.strip().removesuffix("%"))
        settings = changed_settings(AutoscalerSettings(), [*changes, *settings_pairs(context.args)])
        tuned = deciding_policy(policy)
        runner = runner_of(options, settings=settings, policies={**POLICIES, policy: tuned})
        base = runner.run(_BASE)
        points = [CurvePoint(name=position.name, report=runner.run(policy, position)) for position in tuned.dial]
    except (InvalidValue, SettingsError) as error:
        click.echo(str(error), err=True)
        sys.exit(USAGE_EXIT)
    best = best_within(points, base.pod_seconds * share)
    chosen = {} if best is None else _settings_of(tuned, best.name, settings)
    if is_json(options):
        click.echo(msgspec.json.encode(_as_record(base, points, best, chosen=chosen)).decode())
        return
    for line in policy_table({_BASE: base, **{point.name: point.report for point in points}}):
        click.echo(line)
    click.echo()
    for line in _advice(base, best, chosen, share=share):
        click.echo(line)


def _settings_of(policy: SimulatedPolicy, position: str, settings: AutoscalerSettings) -> dict[str, str]:
    change = next(dial_position.change for dial_position in policy.dial if dial_position.name == position)
    changed = change(policy.change(settings))
    default = AutoscalerSettings()
    return {
        field.knob.key: field.knob.unit.write(getattr(changed, field.name))
        for field in fields_of(AutoscalerSettings)
        if len(field.path) == 1 and getattr(changed, field.name) != getattr(default, field.name)
    }


def _advice(base: PolicyReport, best: CurvePoint | None, chosen: dict[str, str], *, share: float) -> Iterator[str]:
    if best is None:
        yield f"Every position of the dial costs more than {share:.0%} of the pod-seconds of Knative's defaults."
        return
    report = best.report
    yield f"Best within {share:.0%} of the pod-seconds of Knative's defaults: {best.name}. On this workload it would have meant"
    yield f"  {report.cold_requests:.0f} cold requests instead of {base.cold_requests:.0f}{_change(report.cold_requests, base.cold_requests)},"
    yield (
        f"  {report.pod_seconds / 3600:.1f} pod-hours instead of {base.pod_seconds / 3600:.1f}"
        f"{_change(report.pod_seconds, base.pod_seconds)},"
    )
    yield f"  a 99th percentile of the wait of {report.wait_p99_s:.2f} s instead of {base.wait_p99_s:.2f} s."
    if not chosen:
        yield "These are the defaults: there is nothing to set."
        return
    yield "Paste into the data of the ConfigMap config-autoscaler:"
    for key, value in chosen.items():
        yield f'  {key}: "{value}"'


def _change(value: float, base: float) -> str:
    return f" ({value / base - 1:+.0%})" if base else ""


def _as_record(
    base: PolicyReport, points: Sequence[CurvePoint], best: CurvePoint | None, *, chosen: dict[str, str]
) -> dict[str, Any]:
    def shown(report: PolicyReport) -> dict[str, Any]:
        record = msgspec.structs.asdict(report)
        record.pop("pod_series")
        return record

    return {
        "base": shown(base),
        "curve": [{"name": point.name, **shown(point.report)} for point in points],
        "best": None if best is None else best.name,
        "settings": chosen,
    }
