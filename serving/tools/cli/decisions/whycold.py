"""``serving why NAME --cold``: the last cold starts of a service as bars, by step, from the dashboard."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.output import clock_text
from serving.tools.cli.client.stats import DashboardPages

_BAR_WIDTH = 40
_SHOWN_MAX = 5


def print_cold_starts(api: ApiClient, name: str, *, dashboard: str | None, output: str) -> None:
    """Print the cold starts of the service or revision NAME. Ends the command where there is no dashboard or no such name."""
    revisions: list[dict[str, Any]] = DashboardPages(api, dashboard).read(
        "coldstarts", {"name": f"{api.namespace}/{name}"}
    )
    if output == "json":
        click.echo(json.dumps(revisions, indent=2))
        return
    for revision in revisions:
        for line in cold_lines(revision):
            click.echo(line)
    if not any(revision["starts"] for revision in revisions):
        click.echo(f"no cold start of {name} is known; the dashboard knows those since it and the activators started")


def cold_lines(cold_starts: Mapping[str, Any]) -> Iterator[str]:
    """The median of a revision's cold starts, what to do about it, and its last ones; none without a cold start."""
    starts, median = cold_starts["starts"], cold_starts["median"]
    if not starts:
        return
    revision = cold_starts["revision"].partition("/")[2]
    yield f"{revision}: median of {len(starts)} cold start{'s' * (len(starts) != 1)}, {_ms(median['took_s'])}"
    yield from _bars(median["steps"], median["took_s"])
    yield median["advice"]
    # A single one is the median.
    for start in starts[:_SHOWN_MAX] if len(starts) > 1 else ():
        yield f"{clock_text(start['at_s'])} {revision} {_ms(start['took_s'])}"
        yield from _bars(start["steps"], start["took_s"])


def _bars(steps: Mapping[str, float], total_s: float) -> Iterator[str]:
    """One line per step, with a bar that starts at the end of the previous bar."""
    before_s = 0.0
    scale = _BAR_WIDTH / max(total_s, sum(steps.values()), 1e-9)
    for step, took_s in steps.items():
        start, end = round(before_s * scale), round((before_s + took_s) * scale)
        bar = f"{' ' * start}{'█' * max(1, end - start)}"
        yield f"  {step:19}{_ms(took_s):>9}  {bar}"
        before_s += took_s


def _ms(took_s: float) -> str:
    return f"{1000 * took_s:.0f} ms" if took_s >= 0.01 else f"{1000 * took_s:.1f} ms"
