"""``serving why``: changes of a service's or revision's scale, one sentence with numbers each, and moves of traffic.

Present problems come first. Recent decisions come from the autoscaler; decisions that the autoscaler no longer stores
come from the decision log in the state folder. Without a connection to a cluster's autoscaler, the command uses Events.
"""

import contextlib
import datetime as dt
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from serving.core.model.errors import InvalidValue, NewerFormat, ServingError
from serving.core.model.event import (
    GIVEN_BACK_REASON,
    OOM_KILLED_REASON,
    ROLLBACK_REASON,
    SCALED_REASON,
    TRAFFIC_REASON,
)
from serving.core.model.knative import (
    CONDITION_DORMANT,
    CONDITION_READY,
    DORMANT_REASONS,
    REVISION_LABEL,
    SERVICE_LABEL,
)
from serving.core.model.objects import Object, condition_of, labels_of, name_of, nested
from serving.core.model.quantity import parse_duration_s
from serving.core.model.rolloutcheck import ROLLED_BACK_REASON
from serving.core.model.versions import DECISIONS, NEWER_DECISIONS, refuse_newer
from serving.core.scaling.scaler.decision_lines import DECISION_LOG, DECISION_LOG_FILES, DecisionLine, LoggedDecision
from serving.core.settings.autoscaler import POLICIES
from serving.core.traffic.ejection import EjectionReport
from serving.net.cluster.kinds import (
    CONFIGURATION,
    EVENT,
    HORIZONTAL_POD_AUTOSCALER,
    POD,
    REVISION,
    SCALED_WORKLOAD,
    SERVING_SERVICE,
)
from serving.tools.cli.client.api import ApiClient, api_options, fail, fail_usage
from serving.tools.cli.client.objects import created_s, items_of, last_lines, revisions_of
from serving.tools.cli.client.output import clock_text, counted, output_option, print_aside, printable
from serving.tools.cli.client.reach import Reach
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.client.stats import DashboardPages, Stats, autoscaler_option, read_page
from serving.tools.cli.nodes.nodegroups import node_story, print_why_of_nodes
from serving.tools.cli.services.get import watched

# The reasons of printed Events, with the kinds of the Events' objects.
_REASONS = {
    SCALED_REASON: (REVISION.name, SCALED_WORKLOAD.name),
    OOM_KILLED_REASON: (REVISION.name, SCALED_WORKLOAD.name),
    TRAFFIC_REASON: (SERVING_SERVICE.name,),
    ROLLBACK_REASON: (SERVING_SERVICE.name,),
    GIVEN_BACK_REASON: (CONFIGURATION.name,),
}

_REVISIONS = "/apis/serving.knative.dev/v1/namespaces/{namespace}/revisions"
_NOT_FOUND = 404
# The names of a service's revisions without user-defined names.
_NUMBER = r"\d{5,}"
# The countdown in a sentence. Decisions that differ only in the countdown are one line.
_COUNTDOWN = re.compile(r"\d+ s more")


class ScaleEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a revision's scale or a service's traffic, at ``at_s`` (seconds since the epoch), as a sentence."""

    at_s: float
    reason: str
    revision: str
    sentence: str


def past_changes(api: ApiClient, is_ours: Callable[[str], bool]) -> list[ScaleEvent]:
    """The stored changes of the selected revisions and services in the namespace, oldest first."""
    changes = [_change_of(event) for event in items_of(api, EVENT)]
    return sorted(
        (change for change in changes if change is not None and is_ours(change.revision)),
        key=lambda change: change.at_s,
    )


def coming_changes(api: ApiClient, is_ours: Callable[[str], bool], *, since_s: float) -> Iterator[ScaleEvent]:
    """Yield the changes since a time, without end. Raises ``ServingError`` when the API rejects the watch."""
    seen: set[str] = set()
    for event in watched(api, EVENT):
        change = None if event["type"] in {"DELETED", "BOOKMARK"} else _change_of(event["object"])
        version = str(nested(event, "object", "metadata", "resourceVersion"))
        # A new watch after a disconnect starts with all existing objects.
        if change is not None and change.at_s >= since_s and version not in seen and is_ours(change.revision):
            seen.add(version)
            yield change


def _change_of(event: Object) -> ScaleEvent | None:
    reason = str(event.get("reason"))
    if nested(event, "involvedObject", "kind") not in _REASONS.get(reason, ()):
        return None
    stamp = str(event.get("lastTimestamp") or nested(event, "metadata", "creationTimestamp"))
    return ScaleEvent(
        at_s=dt.datetime.fromisoformat(stamp).timestamp(),
        reason=reason,
        revision=str(nested(event, "involvedObject", "name")),
        sentence=str(event.get("message", "")),
    )


@click.command()
@click.argument("name")
@click.option(
    "--since",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Show decisions newer than a duration, such as 90s, 10m or 2h.",
)
@click.option("-f", "--follow", is_flag=True, help="Stream new decisions until interrupted.")
@output_option()
@click.option("--cold", is_flag=True, help="Show the steps of the latest cold starts instead.")
@click.option("--dashboard", metavar="URL", help="Link of the dashboard, for --cold. Detected by default.")
@autoscaler_option
@api_options
def why(
    *,
    api: ApiClient,
    name: str,
    since: str,
    follow: bool,
    output: str,
    autoscaler: str | None,
    **options: Any,  # noqa: ANN401 - the options for cold starts
) -> None:
    """Explain the number of pods of the service or revision NAME; nodegroup/NAME and node/NAME show the history of nodes."""
    since_s = _since_s(since)
    if options["cold"]:
        print_cold_starts(api, name, dashboard=options["dashboard"], output=output)
        return
    if print_why_of_nodes(api, name, since_s=since_s):
        return
    ours = _Ours(api, name)
    # Older decisions are about a deleted service or revision with the same name.
    since_s = max(since_s, ours.created_s)
    try:
        stats = Stats(autoscaler, api)
    except ServingError as error:
        if api.state_path is not None or autoscaler is not None:
            raise
        _print_from_events(api, ours, why_not=str(error), since_s=since_s, follow=follow, output=output)
        return
    asked_s = time.time()
    decisions = [_read(body) for body in stats.decisions(namespace=api.namespace)]
    decisions = [
        decision
        for decision in decisions
        if decision.line.revision in ours and decision.line.entry.at_wall_s >= ours.created_s
    ]
    if api.state_path is not None and not autoscaler:
        decisions += _logged(api.state_path, ours, forgotten(decision.line for decision in decisions), since_s=since_s)
    decisions.sort(key=lambda decision: decision.line.entry.since_wall_s)
    causes = unready_lines(api, name)
    with contextlib.suppress(ServingError):
        causes += ejected_lines(Reach(api), api.namespace, ours.__contains__)
    recent = [decision for decision in decisions if decision.line.entry.at_wall_s >= since_s]
    now = [*(_saved(stats, api.namespace, ours) if decisions else ()), *pod_scaler_lines(api, ours.__contains__)]
    now += dormant_lines(items_of(api, POD), ours.__contains__)
    now += node_story(api, ours.__contains__, since_s=since_s)
    moves = [
        past_change
        for past_change in past_changes(api, ours.__contains__)
        if past_change.reason != SCALED_REASON and past_change.at_s >= since_s
    ]
    if output == "text":
        _print_lines([*causes, *in_order(folded(decision.line for decision in recent), moves), *now])
    else:
        _print_lines(decision.body.decode() for decision in recent)
    if not (causes or decisions or now or moves or follow):
        fail(ours.nothing())
    if follow:
        # From the time of the first response on, so that no later decision is lost.
        events = stats.events(namespace=api.namespace, since=f"{asked_s}")
        decided = (_read(body) for event, body in events if event == "decision")
        is_text = output == "text"
        shown = ShownDecisions((decision.line for decision in decisions), by_sentence=is_text)
        new = (decision for decision in decided if decision.line.revision in ours and shown.is_new(decision.line))
        _print_lines(line_of(decision.line) if is_text else decision.body.decode() for decision in new)


def _since_s(text: str) -> float:
    """The time of ``--since``, in seconds since the epoch. Ends the command for an invalid time."""
    try:
        age_s = parse_duration_s(text)
    except InvalidValue as error:
        fail_usage(f"--since: {error}")
    if age_s <= 0:
        fail_usage(f"--since: {text!r} is not a time before now, as 90s, 10m or 2h")
    return time.time() - age_s


def line_of(line: DecisionLine) -> str:
    """Format one line: time, revision, sentence and repetitions."""
    entry = line.entry
    times = "once" if entry.repeated_count == 1 else f"{entry.repeated_count} times"
    again = f" ({times} more, until {clock_text(entry.at_wall_s)})" if entry.repeated_count else ""
    return f"{clock_text(entry.since_wall_s)} {line.revision} {line.sentence}{again}"


def in_order(lines: Iterable[DecisionLine], moves: Iterable[ScaleEvent]) -> list[str]:
    """Sort the lines of decisions and of traffic moves by time."""
    timed = [(line.entry.since_wall_s, line_of(line)) for line in lines] + [
        (move.at_s, _event_line(move)) for move in moves
    ]
    return [text for _, text in sorted(timed, key=lambda timed_line: timed_line[0])]


def folded(lines: Iterable[DecisionLine]) -> list[DecisionLine]:
    """Merge consecutive decisions of one revision that differ only in a countdown. The newest sentence is kept."""
    folded_lines: list[DecisionLine] = []
    latest: dict[str, int] = {}
    for line in lines:
        place = latest.get(line.revision)
        if place is None or not _is_like(folded_lines[place], line):
            latest[line.revision] = len(folded_lines)
            folded_lines.append(line)
            continue
        first, entry = folded_lines[place].entry, line.entry
        count = first.repeated_count + 1 + entry.repeated_count
        entry = msgspec.structs.replace(
            entry, since_s=first.since_s, since_wall_s=first.since_wall_s, repeated_count=count
        )
        folded_lines[place] = msgspec.structs.replace(line, entry=entry)
    return folded_lines


def _is_like(line: DecisionLine, other: DecisionLine) -> bool:
    return _COUNTDOWN.sub("", line.sentence) == _COUNTDOWN.sub("", other.sentence)


def forgotten(remembered: Iterable[DecisionLine]) -> Callable[[LoggedDecision], bool]:
    """Return a filter: whether a logged change is older than all of its revision's decisions in ``remembered``."""
    first_s: dict[str, float] = {}
    for line in remembered:
        first_s.setdefault(line.revision, line.entry.since_wall_s)

    def is_forgotten(decision: LoggedDecision) -> bool:
        return not decision.entry.repeated_count and decision.entry.at_wall_s < first_s.get(
            decision.revision, float("inf")
        )

    return is_forgotten


class ShownDecisions:
    """Filters repeated decisions.

    ``by_sentence`` also drops decisions that differ from the previous decision only in a countdown.
    """

    def __init__(self, lines: Iterable[DecisionLine], *, by_sentence: bool = False) -> None:
        self._by_sentence = by_sentence
        self._first: set[tuple[str, float]] = set()
        self._latest: dict[str, DecisionLine] = {}
        for line in lines:
            self._first.add((line.revision, line.entry.since_wall_s))
            self._latest[line.revision] = line

    def is_new(self, line: DecisionLine) -> bool:
        """Whether a decision is to be printed.

        A repeated decision is one line with the time of its first occurrence. It is printed only once, by this time.
        """
        latest, since_s = self._latest.get(line.revision), line.entry.since_wall_s
        if (line.revision, since_s) in self._first or (latest is not None and latest.entry.since_wall_s == since_s):
            return False
        self._latest[line.revision] = line
        return not (self._by_sentence and latest is not None and _is_like(latest, line))


def log_files(state_path: Path) -> list[Path]:
    """The files of the decision log, oldest first."""
    older = [state_path / f"{DECISION_LOG}.{number}" for number in range(DECISION_LOG_FILES - 1, 0, -1)]
    return [path for path in (*older, state_path / DECISION_LOG) if path.exists()]


class _Line(msgspec.Struct, frozen=True):
    """A decision: the parts of its line, and its JSON form."""

    line: DecisionLine
    body: bytes


class _Ours:
    """The revisions that a name selects: one revision, or all of a service."""

    def __init__(self, api: ApiClient, name: str) -> None:
        self._api = api
        self.name = name
        self._known: dict[str, bool] = {}
        # 0 if the creation time of the service, workload or revision is unknown.
        self.created_s, self._is_absent = 0.0, True
        for kind in (SERVING_SERVICE, SCALED_WORKLOAD, REVISION):
            status, body = api.call("GET", path_of(kind, api.namespace, name))
            # A user without the right to read it does not know whether it exists.
            self._is_absent &= status == _NOT_FOUND
            if status < 400:
                self.created_s = created_s(body)
                break

    def nothing(self) -> str:
        """The error message if there are no decisions about the revisions."""
        if self._is_absent:
            why_not = ": there is no service, workload or revision of this name; `serving get` lists them"
        else:
            why_not = " is recorded"
        return f"no decision about {self.name} in {self._api.namespace}{why_not}"

    def has(self, decision: LoggedDecision) -> bool:
        """Whether a logged decision is about one of the revisions."""
        return decision.namespace == self._api.namespace and decision.revision in self

    def __contains__(self, revision: str) -> bool:
        if revision not in self._known:
            self._known[revision] = revision == self.name or self._is_of_service(revision)
        return self._known[revision]

    def _is_of_service(self, revision: str) -> bool:
        # Revision names begin with the service name, so few requests are needed.
        if not revision.startswith(f"{self.name}-"):
            return False
        status, response = self._api.call("GET", f"{_REVISIONS.format(namespace=self._api.namespace)}/{revision}")
        if status == _NOT_FOUND:
            # A deleted revision has only a name, no labels.
            return re.fullmatch(_NUMBER, revision.removeprefix(f"{self.name}-")) is not None
        return (response["metadata"].get("labels") or {}).get(SERVICE_LABEL) == self.name


def _print_from_events(api: ApiClient, ours: _Ours, *, why_not: str, since_s: float, follow: bool, output: str) -> None:
    """Print the changes in Events, and why no decisions are available."""
    if output != "text":
        fail_usage(f"-o {output} prints whole records, which only an autoscaler has: {why_not}")
    print_aside(f"from Events, which are rate-limited: {why_not}")
    if follow:
        for coming_change in coming_changes(api, ours.__contains__, since_s=since_s):
            click.echo(_event_line(coming_change))
    changes, unready = past_changes(api, ours.__contains__), unready_lines(api, ours.name)
    now = [*pod_scaler_lines(api, ours.__contains__), *dormant_lines(items_of(api, POD), ours.__contains__)]
    _print_lines([*unready, *(_event_line(change) for change in changes if change.at_s >= since_s), *now])
    if not (changes or unready or now):
        fail(ours.nothing())


def _event_line(change: ScaleEvent) -> str:
    return printable(f"{clock_text(change.at_s)} {change.revision} {change.sentence}")


def _saved(stats: Stats, namespace: str, ours: _Ours) -> Iterator[str]:
    """Yield a line per revision: its policy, the pods that the other built-in policy would want, and both costs."""
    for story in stats.policies(namespace=namespace):
        if story.sentence and story.revision in ours:
            other = next(policy for policy in POLICIES if policy != story.policy)
            pods = counted(story.shadow_scale, "pod")
            yield f"{story.revision} policy {story.policy}, {other} in shadow has {pods} now; {story.sentence}"


def _logged(
    state_path: Path, ours: _Ours, is_wanted: Callable[[LoggedDecision], bool], *, since_s: float
) -> Iterator[_Line]:
    """The selected decisions in the log since a time. Unreadable lines are skipped; a crash truncates the last line."""
    name = ours.name.encode()
    decode, newer = msgspec.json.Decoder(LoggedDecision).decode, None
    for path in log_files(state_path):
        with path.open("rb") as file:
            for line in file:
                if name not in line:
                    continue
                try:
                    decision = decode(line)
                    refuse_newer(str(path), decision.version, known=DECISIONS, action=NEWER_DECISIONS)
                except NewerFormat as error:
                    newer = error
                except msgspec.DecodeError:
                    continue
                else:
                    if decision.entry.at_wall_s >= since_s and is_wanted(decision) and ours.has(decision):
                        with contextlib.suppress(InvalidValue):
                            yield _explained(line)
    if newer is not None:
        print_aside(f"some decisions are left out: {newer}")


def _read(body: bytes) -> _Line:
    return _Line(msgspec.json.decode(body, type=DecisionLine), body)


def _explained(line: bytes) -> _Line:
    # The numbers of a logged decision form its sentence. Their types import the deciders, which takes longer
    # than the whole command otherwise.
    from serving.autoscaler.decision_events import explained  # noqa: PLC0415 - as above
    from serving.core.scaling.scaler.replay import read_record  # noqa: PLC0415 - as above

    record = read_record(line)
    explanation = explained((record.namespace, record.revision), record.entry)
    return _Line(explanation, msgspec.json.encode(explanation))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))


_BAR_WIDTH = 40
_SHOWN_MAX = 5


def print_cold_starts(api: ApiClient, name: str, *, dashboard: str | None, output: str) -> None:
    """Print the cold starts of the service or revision NAME.

    Ends the command if there is no dashboard, or if the name is unknown.
    """
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
        click.echo(f"no cold start of {name} is recorded; records begin when the dashboard and the activators start")


def cold_lines(cold_starts: Mapping[str, Any]) -> Iterator[str]:
    """The median of a revision's cold starts, advice, and the last cold starts; empty without a cold start."""
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
    """One line per step. Its bar begins where the bar of the previous step ends."""
    before_s = 0.0
    scale = _BAR_WIDTH / max(total_s, sum(steps.values()), 1e-9)
    for step, took_s in steps.items():
        start, end = round(before_s * scale), round((before_s + took_s) * scale)
        bar = f"{' ' * start}{'█' * max(1, end - start)}"
        yield f"  {step:19}{_ms(took_s):>9}  {bar}"
        before_s += took_s


def _ms(took_s: float) -> str:
    return f"{1000 * took_s:.0f} ms" if took_s >= 0.01 else f"{1000 * took_s:.1f} ms"


_LOG_LINES = 5
_TIMEOUT_S = 5.0


def unready_lines(api: ApiClient, name: str) -> list[str]:
    """Why the revision NAME, or the newest revision of service NAME, is not ready; empty if it is ready or unknown."""
    ready = condition_of(api.peek(path_of(SERVING_SERVICE, api.namespace, name)), CONDITION_READY)
    undone = [ready["message"].replace('"', "")] if ready.get("reason") == ROLLED_BACK_REASON else []
    return undone + [line for revision in _revisions(api, name) for line in _lines(api, revision)]


def pod_scaler_lines(api: ApiClient, is_ours: Callable[[str], bool]) -> Iterator[str]:
    """The last decisions of HorizontalPodAutoscalers, for the selected revisions that they scale."""
    for scaler in api.peek(path_of(HORIZONTAL_POD_AUTOSCALER, api.namespace)).get("items") or ():
        if not is_ours(name_of(scaler)):
            continue
        messages = [condition_of(scaler, kind).get("message") for kind in ("ScalingActive", "AbleToScale")]
        what = next((text for text in messages if text), "no decision yet")
        yield f"{name_of(scaler)} by its HorizontalPodAutoscaler (class hpa): {what}"


def dormant_lines(pods: Iterable[Object], is_ours: Callable[[str], bool]) -> Iterator[str]:
    """A line for each revision with dormant pods: their number, since when, and unusual reasons."""
    by_revision: dict[str, list[dict[str, str]]] = {}
    for pod in pods:
        revision, its = labels_of(pod).get(REVISION_LABEL, ""), condition_of(pod, CONDITION_DORMANT)
        if its and is_ours(revision):
            by_revision.setdefault(revision, []).append(its)
    for revision, conditions in sorted(by_revision.items()):
        asleep = [entry for entry in conditions if entry.get("status") == "True"]
        what = f"{len(asleep)} of {len(conditions)} pod{'s' * (len(conditions) != 1)} dormant"
        if asleep:
            first = min(entry.get("lastTransitionTime", "") for entry in asleep)
            with contextlib.suppress(ValueError):
                what += f", the longest since {clock_text(dt.datetime.fromisoformat(first).timestamp())}"
        odd = {entry.get("message", "") for entry in conditions if entry.get("reason") not in DORMANT_REASONS}
        yield "; ".join([f"{revision}: {what}", *sorted(odd)])


def _revisions(api: ApiClient, name: str) -> list[Object]:
    if api.peek(path_of(SERVING_SERVICE, api.namespace, name)):
        # A newer revision supersedes a failed one, which therefore explains nothing about the present.
        return revisions_of(api, name)[:1]
    revision = api.peek(path_of(REVISION, api.namespace, name))
    return [revision] if revision else []


def _lines(api: ApiClient, revision: Object) -> Iterator[str]:
    ready = condition_of(revision, "Ready")
    if not ready or ready.get("status") == "True" or nested(revision, "spec", "servingState") == "Retired":
        return
    name = name_of(revision)
    message = ready.get("message", "").strip()
    what = ": ".join(part for part in (ready.get("reason", ""), message) if part) or "its pods are starting"
    first, *more = what.splitlines()
    yield f"{name} is not ready: {first}"
    yield from (f"  {line}" for line in more)
    log = [line for line in last_lines(api, name, count=_LOG_LINES) if line.strip() and line.strip() not in what]
    if log:
        yield f"last lines of the log of {name}:"
        yield from (f"  {line}" for line in log)


def ejected_lines(reach: Reach, namespace: str, is_ours: Callable[[str], bool]) -> list[str]:
    """A line for each pod of the selected revisions that an activator has ejected or is retrying."""
    return [
        _line(activator, report)
        for activator, reports in _reports(reach, namespace)
        for report in reports
        if is_ours(report.revision)
    ]


def _reports(reach: Reach, namespace: str) -> Iterator[tuple[str, list[EjectionReport]]]:
    token = reach.token()
    for name, url in reach.activator_pages().items():
        try:
            body = read_page(f"{url}/ejections/{namespace}", token, timeout_s=_TIMEOUT_S)
            reports = msgspec.json.decode(body, type=list[EjectionReport])
        except (OSError, msgspec.DecodeError):
            # `serving doctor` reports an activator that does not respond.
            continue
        yield name, reports


def _line(activator: str, report: EjectionReport) -> str:
    if report.is_silent:
        what = f"does not respond ({report.in_flight_count} requests in flight, ejected {_times(report.failure_count)})"
    else:
        what = f"accepts no connection ({_times(report.failure_count)})"
    if report.until_wall_s is None:
        then = "gets requests again, and has not responded yet"
    else:
        then = f"gets no requests until {clock_text(report.until_wall_s)}"
    return f"{clock_text(report.since_wall_s)} {report.revision} pod {report.pod} ({report.address}) {what}; {activator}: it {then}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"
