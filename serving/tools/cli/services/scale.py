"""``serving scale``: bounds and targets of the number of pods, as annotations of the template: a new revision."""

import json
from typing import Any

import click

from serving.core.model.objects import Object, name_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec
from serving.core.settings.annotations import read_annotations
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.net.cluster.kinds import SCALED_WORKLOAD, SERVING_SERVICE
from serving.net.cluster.servicepatch import scale_patch, workload_scale_patch
from serving.tools.cli.client.api import ApiClient, api_options, fail_usage
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import is_workload, served_of
from serving.tools.cli.client.output import Progress, counted, output_option
from serving.tools.cli.client.resources import path_of, wait_timeout_option
from serving.tools.cli.services.containeroptions import scaling_from, scaling_options
from serving.tools.cli.services.url import print_unrouted
from serving.tools.cli.services.waiting import until_ready

_TIMEOUT_S = 300.0


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.argument("count", type=click.IntRange(0), required=False)
@scaling_options
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the new revision is ready.")
@wait_timeout_option(_TIMEOUT_S)
@output_option()
@api_options
def scale(
    *,
    api: ApiClient,
    name: str,
    count: int | None,
    wait: bool,
    wait_s: float,
    output: str,
    **options: Any,  # noqa: ANN401 - the options of the command
) -> None:
    """Set the minimum and maximum number of pods of a service or workload. COUNT sets both.

    For a service the change creates a new revision.
    """
    scaling = scaling_from(options)
    if count is not None and scaling.keys() & {"min-scale", "max-scale"}:
        fail_usage("COUNT sets both bounds: omit --min and --max")
    if count == 0:
        fail_usage(f"a maximum of 0 pods is invalid: `serving scale {name} --min 0` allows scale to zero")
    if count is not None:
        scaling |= {"min-scale": str(count), "max-scale": str(count)}
    if not scaling:
        fail_usage("give COUNT, --min, --max or another option of scaling: see `serving scale --help`")
    service = served_of(api, name)
    if is_workload(service):
        path = path_of(SCALED_WORKLOAD, api.namespace, name)
        _print_workload(api.done("PATCH", path, workload_scale_patch(scaling)), output)
        return
    patch = scale_patch(service, scaling)
    with Progress(f"scaling {name}"):
        service = api.done("PATCH", path_of(SERVING_SERVICE, api.namespace, name), patch)
        if wait:
            service = until_ready(api, name, timeout_s=wait_s).service
    if output == "json":
        click.echo(json.dumps(service, indent=2))
        return
    annotations = nested(service, "spec", "template", "metadata", "annotations") or {}
    wanted = read_annotations(annotations, AutoscalerSettings()).scaling.applied_to(AutoscalerSettings())
    revision = nested(service, "status", "latestCreatedRevisionName") or ""
    click.echo(f"{name}: {_bounds(wanted.min_scale, wanted.max_scale)}{f' ({revision})' if wait else ''}")
    print_unrouted(service)


def _print_workload(workload: Object, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(workload, indent=2))
        return
    scaling = ScaledWorkloadSpec.from_object(workload).scaling
    defaults = AutoscalerSettings()
    low = defaults.min_scale if scaling.min_count is None else scaling.min_count
    high = defaults.max_scale if scaling.max_count is None else scaling.max_count
    click.echo(f"{name_of(workload)}: {_bounds(low, high)}")


def _bounds(low: int, high: int) -> str:
    return f"at least {counted(low, 'pod')}, {f'at most {high}' if high else 'no limit'}"
