"""``serving requests``: a service's failed, slowest and sampled requests, from the activators that forwarded them."""

import http
import http.client
import time
import urllib.error
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence

import click
import msgspec

from serving.core.traffic.requesthistory import SLOW_AGE_MAX_S, ErrorCause, RequestRecord, RequestReport, merged
from serving.tools.cli.client.api import ApiClient, api_options, fail
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import is_known
from serving.tools.cli.client.output import aligned, clock_text, output_option, paint, print_aside, printable
from serving.tools.cli.client.reach import Reach
from serving.tools.cli.client.stats import read_page

_TIMEOUT_S = 5.0
_PERIOD_S = 1.0
_SHOWN = 20
_TONES = {"client": "yellow", "": "green"}
_MS = 1000


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.option("--failed", "list_name", flag_value="failed", help="Show failed requests only, the latest last.")
@click.option(
    "--slow",
    "list_name",
    flag_value="slow",
    help="Show the slowest requests of the last 15 minutes, the slowest first.",
)
@click.option("-f", "--follow", is_flag=True, help="Stream new requests as they end, until interrupted.")
@output_option()
@click.option(
    "--activator",
    "urls",
    multiple=True,
    metavar="URL",
    help="Address of an activator's metrics; repeatable. Detected by default.",
)
@api_options
def requests(
    *, api: ApiClient, name: str, list_name: str | None, follow: bool, output: str, urls: tuple[str, ...]
) -> None:
    """Show requests of the service, workload or revision NAME: failed ones, the slowest or a sample, and errors by cause."""
    sources = _RequestSources(api, urls)
    reports = merged(sources.read(name))
    if not reports and not follow:
        _explain_nothing(api, name)
    if output == "json" and not follow:
        click.echo(msgspec.json.format(msgspec.json.encode(reports), indent=2).decode())
        return
    chosen = _chosen(reports, list_name)
    if output == "text":
        _print_report(api, reports, chosen if list_name == "slow" else chosen[-_SHOWN:])
    seen = {*chosen}
    while follow:
        time.sleep(_PERIOD_S)
        records = _chosen(merged(sources.read(name, is_again=True)), list_name)
        for record in sorted({*records} - seen, key=_end_s):
            click.echo(msgspec.json.encode(record).decode() if output == "json" else "\n".join(_lines(record)))
        # An activator that does not respond to this query keeps its earlier records.
        seen = {*records} | {record for record in seen if record.at_wall_s > time.time() - SLOW_AGE_MAX_S}


class _RequestSources:
    """The activators named in the options, or the system's. The first query must succeed."""

    def __init__(self, api: ApiClient, urls: Sequence[str]) -> None:
        self._api = api
        self._urls = [url.rstrip("/").removesuffix("/metrics") for url in urls]
        self._reach = Reach(api)
        self._token = self._reach.token()

    def read(self, name: str, *, is_again: bool = False) -> Iterator[RequestReport]:
        """The reports of all activators.

        With ``is_again``, activators that do not respond are skipped, because they may be restarting.
        """
        # The set of pods changes.
        urls = self._urls or list(self._reach.activator_pages().values())
        problems = []
        for url in urls:
            path = "/".join(urllib.parse.quote(part, safe="") for part in (self._api.namespace, name))
            try:
                body = read_page(f"{url}/requests/{path}", self._token, timeout_s=_TIMEOUT_S)
                yield from msgspec.json.decode(body, type=list[RequestReport])
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == http.HTTPStatus.UNAUTHORIZED:
                    fail(f"the activator at {url} refuses the query token; is it that of the same system?")
                problems.append(f"the activator at {url} answers {error.code}: it may be older than this command")
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                problems.append(f"the activator at {url} does not answer: {error}")
        if not is_again and len(problems) == len(urls):
            fail(f"{problems[0] if problems else 'no activator is running'}; {self._reach.hint()}")
        for problem in () if is_again else problems:
            print_aside(problem)


def _explain_nothing(api: ApiClient, name: str) -> None:
    """Print that no request is recorded yet. Ends the command if no service, workload or revision has this name."""
    if not is_known(api, name):
        fail(
            f"no request of {name} in {api.namespace} is recorded, and there is no such service, workload or revision; `serving get` lists services"
        )
    print_aside(f"no request of {name} is recorded yet; records are lost when an activator restarts")


def _chosen(reports: Iterable[RequestReport], list_name: str | None) -> list[RequestRecord]:
    """The records of one list, in order; without a list name, failed and sampled requests without duplicates."""
    if list_name == "slow":
        return sorted((record for report in reports for record in report.slow), key=lambda record: -record.duration_s)
    if list_name == "failed":
        return sorted((record for report in reports for record in report.failed), key=_end_s)
    return sorted({record for report in reports for record in (*report.failed, *report.sampled)}, key=_end_s)


def _end_s(record: RequestRecord) -> float:
    return record.at_wall_s


def _print_report(api: ApiClient, reports: Sequence[RequestReport], chosen: Sequence[RequestRecord]) -> None:
    for line in error_table([cause for report in reports for cause in report.errors]):
        click.echo(line)
    for record in chosen:
        click.echo("\n".join(_lines(record)))
    failed = next((record for record in reversed(chosen) if record.failed_by and record.pod), None)
    if failed is not None:
        click.echo(f"logs of the last failed one: {logs_command(failed, api.namespace)}")


def error_table(causes: Sequence[ErrorCause]) -> list[str]:
    """A table of errors by cause, most frequent first, and an empty line; empty without errors."""
    if not causes:
        return []
    rows = [
        (
            cause.count,
            clock_text(cause.first_wall_s),
            clock_text(cause.last_wall_s),
            cause.failed_by,
            cause.status or "-",
            cause.why,
        )
        for cause in sorted(causes, key=lambda cause: -cause.count)
    ]
    return [*aligned([("ERRORS", "FIRST", "LAST", "FAILED BY", "STATUS", "WHY"), *rows]), ""]


def _lines(record: RequestRecord) -> Iterator[str]:
    head = f"{clock_text(record.at_wall_s)} {record.revision} {record.status or '-'} {record.method} {record.path}"
    yield paint(printable(head), _TONES.get(record.failed_by, "red")) + f"  {time_text(record)}"
    if record.failed_by:
        yield printable(f"    {record.failed_by}: {record.why}")
    labelled = {"pod": record.pod, "trace": record.trace_id, "request": record.request_id}
    parts = [f"{label} {text}" for label, text in labelled.items() if text]
    if record.failed_by and parts:
        yield f"    {', '.join(parts)}"


def time_text(record: RequestRecord) -> str:
    """The duration of a request and its parts: "1204 ms, cold: start 1010, app 194"."""
    parts = {"wait": record.waited_s, "start": record.start_s, "pod queue": record.queued_s, "app": record.app_s}
    named = [f"{name} {round(_MS * took_s)}" for name, took_s in parts.items() if round(_MS * took_s)]
    return f"{round(_MS * record.duration_s)} ms{', cold' if record.is_cold else ''}{': ' if named else ''}{', '.join(named)}"


def logs_command(record: RequestRecord, namespace: str) -> str:
    """The command that prints a pod's logs from a request's arrival to shortly after its end."""
    since_s, until_s = record.at_wall_s - record.duration_s - 1, record.at_wall_s + 2
    since, until = (time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s)) for at_s in (since_s, until_s))
    return f"serving logs {record.service or record.revision} -n {namespace} --pod {record.pod} --since {since} --until {until}"
