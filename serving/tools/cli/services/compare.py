"""``serving compare``: two revisions of a service side by side, from the dashboard's history."""

from collections.abc import Callable, Sequence

import click
import msgspec

from serving.core.model.errors import ServingError
from serving.core.model.objects import name_of
from serving.tools.cli.client.api import ApiClient, api_options, fail_usage
from serving.tools.cli.client.completion import complete_revision, complete_service
from serving.tools.cli.client.objects import revisions_of, service_of
from serving.tools.cli.client.output import aligned
from serving.tools.cli.client.stats import DashboardPages
from serving.tools.cli.services.stats import history_options, range_of
from serving.tools.cli.services.traffic import revision_named
from serving.tools.dashboard.compare import ComparedRevision, RevisionComparison

_PAIR = 2


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.argument("revisions", nargs=-1, metavar="[REVISION REVISION]", shell_complete=complete_revision)
@history_options("1h")
@api_options
def compare(  # noqa: PLR0913 - a range, and what to compare
    *, api: ApiClient, name: str, revisions: tuple[str, ...], begin: str, end: str, output: str, url: str | None
) -> None:
    """Compare two revisions of the service NAME: requests, errors, latency, pods, cost, and settings that differ.

    Without revisions it compares the two with the most traffic, or a revision with all traffic with the previous
    revision.
    """
    if len(revisions) not in {0, _PAIR}:
        expected = (
            f"two revisions after the service's name, as `serving compare {name} {name}-00001 {name}-00002`, or none"
        )
        fail_usage(f"{' '.join(revisions)}: expected {expected}")
    service, names = service_of(api, name), [name_of(revision) for revision in revisions_of(api, name)]
    try:
        pair = [revision_named(revision, service, names) for revision in revisions]
    except ServingError as error:
        fail_usage(str(error))
    query = [("name", f"{api.namespace}/{name}"), *(("revision", f"{api.namespace}/{revision}") for revision in pair)]
    comparison = DashboardPages(api, url).read("compare", [*query, *range_of(begin, end).items()])
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode())
        return
    for line in compared_lines(msgspec.convert(comparison, RevisionComparison)):
        click.echo(line)


def compared_lines(comparison: RevisionComparison) -> list[str]:
    """The comparison as two tables: numbers, and settings that differ."""
    shown: Sequence[tuple[str, Callable[[ComparedRevision], str | None]]] = (
        ("traffic now", lambda revision: f"{revision.traffic_percent} %"),
        ("requests", lambda revision: str(revision.requests)),
        (
            "5xx",
            lambda revision: (
                f"{100 * revision.errors / revision.requests:.3g} % ({revision.errors})" if revision.requests else "-"
            ),
        ),
        ("p50", lambda revision: _ms(revision.p50_s)),
        ("p95", lambda revision: _ms(revision.p95_s)),
        ("p99", lambda revision: _ms(revision.p99_s)),
        ("pods, mean", lambda revision: f"{revision.pods_mean:.2f}"),
        ("pod-seconds", lambda revision: f"{revision.pod_seconds:.0f}"),
        ("GiB-seconds", lambda revision: f"{revision.gib_seconds:.0f}"),
        ("cost", lambda revision: None if revision.price is None else f"{revision.price:.4f}"),
    )
    numbers = [(name, *map(text, comparison.revisions)) for name, text in shown]
    titles = tuple(revision.revision for revision in comparison.revisions)
    lines = aligned([("", *titles), *(number for number in numbers if None not in number)])
    if not comparison.settings:
        return [*lines, "no setting differs"]
    settings = [(setting.name, setting.older or "-", setting.newer or "-") for setting in comparison.settings]
    return [*lines, "", *aligned([("SETTING", *titles), *settings])]


def _ms(took_s: float | None) -> str:
    return "-" if took_s is None else f"{took_s * 1000:.0f} ms"
