"""``serving stats``: the history of a service's revisions from the dashboard, summed up or as a table."""

import csv
import datetime as dt
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click
import msgspec

from serving.core.model.objects import name_of
from serving.tools.cli.client.api import ApiClient, Decorator, adding, api_options, fail, fail_usage
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import is_known, revisions_of
from serving.tools.cli.client.output import age_text, aligned, output_option, print_aside
from serving.tools.cli.client.stats import DashboardPages
from serving.tools.cli.services.logs import moment_s
from serving.tools.dashboard.cost import History, StatsSummary, summary

_TITLES = ("REVISION", "REQUESTS", "5XX", "P99 MAX", "PODS", "MAX", "POD-HOURS")
_HOUR_S = 3600.0
KNOWN_RATIO_MIN = 0.98
"""Part of a range below which the output reports an incomplete history. It is below 1, because the range's ends are
rounded to steps."""
_NOT_COLUMNS = {"at_s", "marks", "decisions", "step_s"}


def history_options(begin: str, outputs: Sequence[str] = ("text", "json")) -> Decorator:
    """Add the options for a range of the dashboard's history: begin, end, output and dashboard.

    ``begin`` is the default of the range's beginning, as time before now.
    """
    return adding(
        click.option(
            *("--from", "begin"),
            default=begin,
            show_default=True,
            metavar="TIME",
            help=f"Start of the period: {begin} (ago), 13:05 or 2026-11-24T13:05.",
        ),
        click.option(
            "--to", "end", default="0s", metavar="TIME", help="End of the period, in the same formats.  [default: now]"
        ),
        output_option(*outputs),
        click.option(*("--dashboard", "url"), metavar="URL", help="Link of the dashboard. Detected by default."),
    )


@click.command()
@click.argument("name", shell_complete=complete_service)
@history_options("24h", outputs=("text", "csv", "json"))
@api_options
def stats(*, api: ApiClient, name: str, begin: str, end: str, output: str, url: str | None) -> None:
    """Show the history of the service, workload or revision NAME: requests, errors, latency and pods.

    The text is a summary of each revision; csv and json have a row for each stored time step.
    """
    span = range_of(begin, end)
    names = [name_of(revision) for revision in revisions_of(api, name)] or [name]
    histories = histories_of(DashboardPages(api, url), api.namespace, names, span=span)
    if not histories:
        print_aside(f"the dashboard has no history of {name} in {api.namespace} from {begin} to {end}")
        fail_unless_service(api, name)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(histories), indent=2).decode())
    elif output == "csv":
        csv.writer(sys.stdout).writerows(_table(histories))
    elif histories:
        for line in aligned([_TITLES, *(_line(summary(revision, history)) for revision, history in histories.items())]):
            click.echo(line)
        known_s = float(span["to"]) - min(history["at_s"][0] for history in histories.values())
        hours = (float(span["to"]) - float(span["from"])) / _HOUR_S
        if known_s / _HOUR_S < hours * KNOWN_RATIO_MIN:
            print_aside(f"the history begins {age_text(known_s)} before the end of these {hours:.3g} hours")


def _line(sums: StatsSummary) -> tuple[str, ...]:
    p99 = "-" if sums.p99_max_s is None else f"{sums.p99_max_s * 1000:.0f} ms"
    return (
        sums.revision,
        str(sums.requests),
        str(sums.errors),
        p99,
        f"{sums.pods_mean:.2f}",
        f"{sums.pods_max:.0f}",
        f"{sums.pod_hours:.2f}",
    )


def _table(histories: Mapping[str, History]) -> Iterator[Sequence[object]]:
    """The header and the rows of all revisions, oldest first. Times are in UTC (RFC 3339)."""
    columns = [name for name in next(iter(histories.values()), {}) if name not in _NOT_COLUMNS]
    yield ("time", "revision", *columns)
    for revision, history in histories.items():
        for place, at_s in enumerate(history["at_s"]):
            at = dt.datetime.fromtimestamp(at_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            yield (at, revision, *(history[name][place] for name in columns))


def fail_unless_service(api: ApiClient, name: str) -> None:
    """End the command with an error if no service, workload or revision has this name.

    Called when the dashboard has no history for the name.
    """
    if not is_known(api, name):
        fail(f"there is no service, workload or revision {name} in {api.namespace}; `serving get` lists them")


def range_of(begin: str, end: str) -> dict[str, str]:
    """The query parameters for ``--from`` and ``--to``. Ends the command for an invalid range."""
    now_s = time.time()
    from_s, to_s = moment_s(begin, "--from", now_s=now_s), moment_s(end, "--to", now_s=now_s)
    if from_s >= to_s:
        fail_usage(f"--from {begin} is not before --to {end}")
    return {"from": f"{from_s:.0f}", "to": f"{to_s:.0f}"}


def histories_of(
    pages: DashboardPages, namespace: str, revisions: Iterable[str], *, span: Mapping[str, str]
) -> dict[str, History]:
    """The histories of revisions by name, from a dashboard; revisions without a history are omitted."""
    histories = {name: pages.read("history", {"revision": f"{namespace}/{name}", **span}) for name in sorted(revisions)}
    return {name: history for name, history in histories.items() if history["at_s"]}
