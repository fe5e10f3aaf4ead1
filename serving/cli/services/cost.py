"""``serving cost``: pod-hours and memory of services over a range, and what else they would have been."""

from collections.abc import Sequence

import click
import msgspec

from serving.cli.client.api import ApiClient, api_options
from serving.cli.client.completion import complete_service
from serving.cli.client.objects import items_of
from serving.cli.client.output import aligned, print_aside
from serving.cli.client.stats import dashboard_link, dashboard_page
from serving.cli.services.stats import histories_of, range_of
from serving.cluster.kinds import REVISION
from serving.dashboard.sums import ServiceCost, cost_of
from serving.model.knative import SERVICE_LABEL
from serving.model.objects import labels_of, name_of, nested
from serving.scaling.adaptive.policy_story import PolicyStory
from serving.scaling.revision import memory_of


@click.command()
@click.argument("name", required=False, shell_complete=complete_service)
@click.option(
    "--from", "begin", default="24h", show_default=True, metavar="TIME", help="24h (ago), 13:05 or 2026-11-24T13:05."
)
@click.option("--to", "end", default="0s", metavar="TIME", help="The same; by default now.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--dashboard", "url", metavar="URL", help="The link of a dashboard; by default from the state folder.")
@api_options
def cost(*, api: ApiClient, name: str | None, begin: str, end: str, output: str, url: str | None) -> None:
    """Show pod-hours and GiB-hours of the service NAME, or of all services in the namespace."""
    link, asked = url or dashboard_link(api.state_path), range_of(begin, end)
    state = dashboard_page(link, "state")
    stories = [one for one in msgspec.convert(state["policies"], list[PolicyStory]) if one.namespace == api.namespace]
    memory: dict[str, dict[str, int]] = {}
    for one in items_of(api, REVISION):
        service = labels_of(one).get(SERVICE_LABEL) or name_of(one)
        if name in (None, service):
            memory.setdefault(service, {})[name_of(one)] = memory_of(nested(one, "spec", "containers") or ())
    found = [
        cost_of(service, histories, memory=bytes_of, stories=stories, prices=state.get("prices") or {})
        for service, bytes_of in sorted(memory.items())
        if (histories := histories_of(link, api.namespace, bytes_of, asked=asked))
    ]
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif found:
        for line in aligned(_rows(found)):
            click.echo(line)
    else:
        what = "a service" if name is None else name
        print_aside(f"the dashboard has no history of {what} in {api.namespace} from {begin} to {end}")


def _rows(found: Sequence[ServiceCost]) -> list[tuple[str, ...]]:
    has_price = any(one.price is not None for one in found)
    titles = ("SERVICE", "POD-HOURS", "GIB-HOURS", *(("COST",) if has_price else ()), "ALWAYS ON", "KNATIVE")
    rows = [
        (
            one.service,
            f"{one.pod_hours:.2f}",
            f"{one.gib_hours:.2f}",
            *((f"{one.price:.2f}",) if one.price is not None else ()),
            f"{one.always_on_pod_hours:.2f}",
            "-" if one.knative_pod_hours is None else f"{one.knative_pod_hours:.2f}",
        )
        for one in found
    ]
    return [titles, *rows]
