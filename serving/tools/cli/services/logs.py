"""``serving logs``: follows the logs of pods, each line after the pod's name, or searches by time and text."""

import contextlib
import datetime as dt
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from serving.core.model.errors import ServingError, Unavailable
from serving.core.model.objects import Object, name_of, nested, timestamp_s
from serving.core.model.quantity import parse_duration_s
from serving.net.cluster.kinds import POD
from serving.tools.cli.client.api import ApiCall, ApiClient, api_options, fail, fail_usage
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.connection import ApiResponse
from serving.tools.cli.client.objects import (
    app_container,
    gone_pods,
    is_workload,
    missing_pods_reason,
    pod_selectors,
    pods_by,
    revisions_of,
    served_of,
    workloads_of,
)
from serving.tools.cli.client.output import clock_text, counted, output_option, paint, print_aside
from serving.tools.cli.client.resources import path_of

_POLL_S = 0.3
# Without following, the command waits only for the end.
_END_POLL_S = 0.02
_COLORS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
# Attempts to read the log of a pod without output.
_TRIES_MAX = 100

# Number of deleted pods in the output, and of their last lines without --tail.
_GONE_MAX = 3
_GONE_LINES = 1000

_STAMP = "%Y-%m-%dT%H:%M:%SZ"

_Lines = queue.SimpleQueue[tuple[str, str]]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_service)
@click.option("-f", "--follow", is_flag=True, help="Stream the logs, also of new pods, until interrupted.")
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="Number of recent lines to print of each pod.")
@click.option("--pod", "wanted", default="", help="Read only this pod; the end of its name is enough.")
@click.option(
    "-c", "--container", default="app", show_default=True, help="Container to read: app, queue-proxy, or a name."
)
@click.option(
    "--previous",
    is_flag=True,
    help=f"Print the logs of containers before their last restart, and of the last {_GONE_MAX} deleted pods.",
)
@click.option(
    "--since", metavar="TIME", help="Print lines since this time, also of deleted pods: 10m, 13:05, 2026-11-24T13:05."
)
@click.option("--until", metavar="TIME", help="Print lines until this time.")
@click.option("--grep", metavar="REGEX", help="Print lines that match this regular expression, also of deleted pods.")
@click.option("--timestamps", is_flag=True, help="Prefix each line with its time, accurate to about a second.")
@output_option()
@click.option("--prefix/--no-prefix", default=True, show_default=True, help="Prefix each line with its pod.")
@api_options
def logs(*, api: ApiClient, names: tuple[str, ...], follow: bool, wanted: str, output: str, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Print the logs of the pods of services; without NAME, of all services in the namespace."""
    if options["tail"] is not None and (options["until"] or options["grep"]):
        fail_usage("--tail excludes --until and --grep")
    search = searched_lines(options.pop("since"), options.pop("until"), options.pop("grep"))
    served = [served_of(api, name) for name in names]
    who, selectors = ", ".join(names) or f"namespace {api.namespace}", pod_selectors(api, served)
    pods = pods_of(api, selectors, wanted)
    gone = _gone(api, served, wanted, search=search, shows_last=options["previous"] or bool(wanted and not pods))
    if not pods and not gone and not follow:
        if wanted:
            fail(absence_of_pod(api, selectors, who=who, wanted=wanted))
        hint = (
            "no log of an earlier pod is stored"
            if options["previous"]
            else "--previous prints the logs of its last pods, -f waits for a pod"
        )
        reasons = dict.fromkeys(map(missing_pods_reason, served)) or ("all services are at zero",)
        click.echo(f"{who} has no pod now: {', or '.join(reasons)}; {hint}", err=True)
        return
    lines: _Lines = queue.SimpleQueue()
    prefix, with_times = options.pop("prefix"), options.pop("timestamps")
    has_times = output == "json" or with_times or search.is_given
    reader = _Reader(api, lines, {**options, "follow": follow, "times": has_times, "search": search})
    # The most recently ended pod comes last.
    for pod in reversed(gone):
        reader.start(pod, is_gone=True)
    for pod in pods:
        reader.start(pod)
    if not pods and not gone:
        click.echo(f"{who} has no pod now: waiting for pods", err=True)
    form = "json" if output == "json" else "prefix" if prefix else "plain"
    shown = _shown(form, search, has_times=has_times, with_times=with_times)
    _print_lines(reader, lines, (selectors, wanted), service=names[0] if len(names) == 1 else "", shown=shown)
    if reader.problem and not follow and not reader.has_read:
        fail(reader.problem)
    if not reader.has_read and not options["previous"] and not search.is_given:
        print_aside(f"{who} has printed nothing {_since_last_start(pods)}; --previous shows what ran before")


def _since_last_start(pods: Sequence[Object]) -> str:
    restarts = sum(
        status.get("restartCount") or 0 for pod in pods for status in nested(pod, "status", "containerStatuses") or ()
    )
    return f"since its last start, after {counted(restarts, 'restart')}" if restarts else "yet"


class SearchedLines(msgspec.Struct, frozen=True, kw_only=True):
    """Selects log lines by time (seconds since the epoch) and pattern."""

    since_s: float = 0.0
    until_s: float = float("inf")
    pattern: re.Pattern[str] | None = None

    @property
    def is_given(self) -> bool:
        """Whether a time or a pattern is set."""
        return self != SearchedLines()

    @property
    def since_stamp(self) -> str:
        """The start time in the API's format; "" without a start time."""
        return dt.datetime.fromtimestamp(self.since_s, tz=dt.UTC).strftime(_STAMP) if self.since_s else ""

    def takes(self, line: str, at_s: float | None) -> bool:
        """Whether a line matches the search. A line whose time is unknown is within any range."""
        is_in_time = at_s is None or self.since_s <= at_s <= self.until_s
        return is_in_time and (self.pattern is None or self.pattern.search(line) is not None)


def searched_lines(since: str | None, until: str | None, grep: str | None) -> SearchedLines:
    """The search that the options describe. Exits for invalid options."""
    try:
        pattern = None if grep is None else re.compile(grep)
    except re.error as error:
        fail_usage(f"--grep {grep!r} is not a regular expression: {error}")
    now_s = time.time()
    search = SearchedLines(
        since_s=0.0 if since is None else moment_s(since, "--since", now_s=now_s),
        until_s=float("inf") if until is None else moment_s(until, "--until", now_s=now_s),
        pattern=pattern,
    )
    if search.since_s > search.until_s:
        fail_usage(f"--since {since} is after --until {until}")
    return search


def moment_s(text: str, option: str, *, now_s: float) -> float:
    """Convert 10m (ago), 13:05 (today) or 2026-11-24T13:05 (local, or with a zone) to seconds since the epoch."""
    try:
        if ":" in text[:3]:
            today = dt.datetime.fromtimestamp(now_s).astimezone().date()
            found_s = dt.datetime.combine(today, dt.time.fromisoformat(text)).timestamp()
        elif "-" in text:
            found_s = dt.datetime.fromisoformat(text).timestamp()
        else:
            found_s = now_s - parse_duration_s(text)
        # Logs begin after the epoch, and 0 would mean no limit.
        return max(1.0, found_s)
    except (ValueError, OverflowError):
        fail_usage(f"{option} {text!r} is not a time: expected 10m (ago), 13:05 (of today) or 2026-11-24T13:05")


def _shown(
    form: str, search: SearchedLines, *, has_times: bool, with_times: bool
) -> Callable[[str, str, str], str | None]:
    """A function that formats a log line in the form ``form``, given the pod's name, a mark for it, and the line.

    The function returns None for a line excluded by ``search``. ``has_times``: each line begins with its time.
    ``with_times``: print this time.
    """

    def shown(pod: str, mark: str, line: str) -> str | None:
        stamp, _, rest = line.partition(" ") if has_times else ("", "", line)
        at_s = timestamp_s(stamp)
        if has_times and at_s is None:
            rest = line
        if not search.takes(rest, at_s):
            return None
        if form == "json":
            revision, _, _ = pod.rpartition("-deployment-")
            fields = {"time": stamp if at_s is not None else None, "revision": revision, "pod": pod, "line": rest}
            return json.dumps(fields)
        text = f"{clock_text(at_s)}  {rest}" if with_times and at_s is not None else rest
        return mark + text if form == "prefix" else text

    return shown


def _print_lines(
    reader: "_Reader",
    lines: _Lines,
    who: tuple[Sequence[str], str],
    *,
    service: str,
    shown: Callable[[str, str, str], str | None],
) -> None:
    width = 0
    checked_s = time.monotonic()
    while True:
        with contextlib.suppress(queue.Empty):
            pod, line = lines.get(timeout=_POLL_S if reader.follows else _END_POLL_S)
            short = short_name(pod, service)
            width = max(width, len(short))
            mark = paint(short.ljust(width), _COLORS[reader.number_of(pod) % len(_COLORS)]) + "  "
            text = shown(pod, mark, line)
            if text is not None:
                click.echo(text)
            if time.monotonic() - checked_s < _POLL_S:
                continue
        if reader.follows:
            checked_s = time.monotonic()
            for current_pod in pods_of(reader.api, *who):
                reader.start(current_pod)
        elif reader.is_done() and lines.empty():
            return


def short_name(pod: str, service: str) -> str:
    """The short name of a pod.

    "hello-00001-deployment-abcde" of service hello is "00001-abcde"; without a service name it is "hello-00001-abcde".
    """
    return pod.removeprefix(f"{service}-").replace("-deployment-", "-")


def absence_of_pod(api: ApiClient, selectors: Sequence[str], *, who: str, wanted: str) -> str:
    """The message for an unknown pod ``wanted``, with the names of the existing pods; ``who`` names their service."""
    names = [name_of(pod) for pod in pods_of(api, selectors, "")]
    return f"no pod of {who} ends with {wanted}; there {'are ' + ', '.join(names) if names else 'is none'}"


def pods_of(api: ApiClient, selectors: Sequence[str], wanted: str) -> list[Object]:
    """The pods that label selectors match; ``wanted`` selects one by name or suffix."""
    return _named(pods_by(api, selectors), wanted)


def _gone(
    api: ApiClient, served: Sequence[Object], wanted: str, *, search: SearchedLines, shows_last: bool
) -> list[Object]:
    """Deleted pods, latest first: with a search, those with logs since its start; else the last few, or none."""
    if not search.is_given and not shows_last:
        return []
    services = [name_of(service) for service in served if not is_workload(service)]
    workloads = [workload for workload in served if is_workload(workload)] if served else workloads_of(api)
    revisions = revisions_of(api, *services) if services or not served else []
    pods = _named(gone_pods(api, [*revisions, *workloads], since_s=search.since_s), wanted)
    return pods if search.is_given else pods[:_GONE_MAX]


def _named(pods: Sequence[Object], wanted: str) -> list[Object]:
    return [pod for pod in pods if not wanted or name_of(pod) == wanted or name_of(pod).endswith(f"-{wanted}")]


class _Reader:
    """Reads the log of each pod in a thread, and puts the lines into a common queue."""

    def __init__(self, api: ApiClient, lines: _Lines, options: dict[str, Any]) -> None:
        self.api = api
        self._lines = lines
        self._options = options
        self.follows: bool = options["follow"]
        self._threads: dict[str, threading.Thread] = {}
        self.problem = ""
        self.has_read = False

    def number_of(self, pod: str) -> int:
        """The pod's number, in order of appearance."""
        return list(self._threads).index(pod)

    def is_done(self) -> bool:
        """Whether the logs of all pods have ended."""
        return not any(thread.is_alive() for thread in self._threads.values())

    def start(self, pod: Object, *, is_gone: bool = False) -> None:
        """Start reading a pod's log once. The log of a deleted pod is read to its end."""
        name = name_of(pod)
        if name in self._threads:
            return
        options = self._options
        if is_gone:
            few = options["tail"] is None and not options["search"].is_given
            tail = _GONE_LINES if few else options["tail"]
            options = {**options, "follow": False, "previous": False, "tail": tail}
        thread = threading.Thread(target=self._read, args=(pod, options, is_gone), daemon=True)
        self._threads[name] = thread
        thread.start()
        if is_gone:
            thread.join()

    def _read(self, pod: Object, options: dict[str, Any], is_gone: bool) -> None:  # noqa: FBT001 - a thread's arguments
        name = name_of(pod)
        container = app_container(pod) if options["container"] == "app" else options["container"]
        query = {
            "container": container,
            "follow": "true" if options["follow"] else "",
            "previous": "true" if options["previous"] else "",
            "tailLines": "" if options["tail"] is None else str(options["tail"]),
            "timestamps": "true" if options["times"] else "",
            "sinceTime": options["search"].since_stamp,
        }
        path = path_of(POD, str(nested(pod, "metadata", "namespace") or self.api.namespace), name, subresource="log")
        try:
            self._copy(name, path, query)
        except Unavailable:
            # The server or the pod has ended; all received lines are printed.
            return
        except ServingError as error:
            if is_gone and not options["previous"]:
                # The pod was deleted while it waited for a restart.
                self._read(pod, {**options, "previous": True}, is_gone)
                return
            self.problem = str(error)

    def _copy(self, name: str, path: str, query: dict[str, str]) -> None:
        tries = _TRIES_MAX if query["follow"] else 1
        is_open = False
        while not is_open:
            tries -= 1
            try:
                with self.api.stream(ApiCall(path=path, query=query, accept="*/*")) as response:
                    is_open = True
                    self._put_lines(name, response)
            except ServingError:
                # A new pod has no log yet, and a busy server may not respond. A retry skips the lines already read.
                if is_open or not tries:
                    raise
                time.sleep(_POLL_S)

    def _put_lines(self, name: str, response: ApiResponse) -> None:
        rest = b""
        for piece in response.pieces():
            self.has_read = True
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._lines.put((name, line.decode("utf-8", "replace")))
        if rest:
            self._lines.put((name, rest.decode("utf-8", "replace")))
