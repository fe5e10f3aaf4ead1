"""``serving cost``: pod-hours and memory of services over a range, and their cost under other policies."""

from collections.abc import Sequence

import click
import msgspec

from serving.tools.cli.client.api import ApiClient, api_options
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.output import aligned, print_aside
from serving.tools.cli.client.stats import DashboardPages
from serving.tools.cli.services.stats import KNOWN_RATIO_MIN, fail_unless_service, history_options, range_of
from serving.tools.dashboard.cost import SERVICE_KIND, ServiceCost

_HOUR_S = 3600.0


@click.command()
@click.argument("name", required=False, shell_complete=complete_service)
@history_options("24h")
@api_options
def cost(*, api: ApiClient, name: str | None, begin: str, end: str, output: str, url: str | None) -> None:
    """Show pod-hours and GiB-hours of the service or workload NAME, or of all services and workloads in the namespace."""
    span = range_of(begin, end)
    page = DashboardPages(api, url).read("cost", span)
    services = msgspec.convert(page["services"], list[ServiceCost])
    costs = [service for service in services if service.namespace == api.namespace and name in {None, service.service}]
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(costs), indent=2).decode())
    elif costs:
        for line in aligned(_rows(costs)):
            click.echo(line)
    known_hours = max((service.known_hours for service in costs), default=0.0)
    hours = (float(span["to"]) - float(span["from"])) / _HOUR_S
    if not costs:
        what = "a service" if name is None else name
        print_aside(f"the dashboard has no history of {what} in {api.namespace} from {begin} to {end}")
        if name is not None:
            fail_unless_service(api, name)
    elif known_hours < hours * KNOWN_RATIO_MIN:
        print_aside(
            f"the dashboard has history of {known_hours:.3g} of these {hours:.3g} hours; the rest is not counted"
        )


def _rows(costs: Sequence[ServiceCost]) -> list[tuple[str, ...]]:
    has_price = any(service.price is not None for service in costs)
    titles = ("SERVICE", "POD-HOURS", "GIB-HOURS", *(("COST",) if has_price else ()), "ALWAYS ON", "KNATIVE")
    rows = [
        (
            service.service if service.kind == SERVICE_KIND else f"{service.service} ({service.kind})",
            f"{service.pod_hours:.2f}",
            f"{service.gib_hours:.2f}",
            *((f"{service.price:.2f}",) if service.price is not None else ()),
            f"{service.always_on_pod_hours:.2f}",
            "-" if service.knative_pod_hours is None else f"{service.knative_pod_hours:.2f}",
        )
        for service in costs
    ]
    return [titles, *rows]
