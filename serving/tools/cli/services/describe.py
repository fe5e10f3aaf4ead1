"""``serving describe``: shows one object on a page of 80 columns."""

import itertools
import json
import time
from collections.abc import Iterator

import click

from serving.core.model.knative import CONDITION_ISOLATED
from serving.core.model.objects import Object, annotations_of, condition_of, name_of, namespace_of, nested
from serving.core.model.routepolicy import route_policy
from serving.core.model.tcpevents import tcp_states
from serving.net.cluster.kinds import POD, REVISION, SCALED_WORKLOAD, SERVING_SERVICE, Kind
from serving.tools.cli.client.api import ApiClient, api_options, fail_usage
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import (
    events_of,
    is_workload,
    items_of,
    last_lines,
    last_seen,
    missing_pods_reason,
    object_of,
    revisions_of,
    seconds_since,
    selector_of,
    served_of,
    service_of,
)
from serving.tools.cli.client.output import age_text, aligned, counted, output_option, paint, printable, wrapped
from serving.tools.cli.client.resources import kind_named
from serving.tools.cli.client.rows import dormant_counts, header_of, revision_row, server_table
from serving.tools.cli.client.shortnames import short_name_problem, short_url
from serving.tools.cli.services.url import address_of

_LOG_LINES = 15
_EVENTS_SHOWN_MAX = 12
_COLORS = {"True": "green", "False": "red", "Unknown": "yellow"}


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[KIND] NAME", shell_complete=complete_service)
@output_option()
@api_options
def describe(*, api: ApiClient, words: tuple[str, ...], output: str) -> None:
    """Show an object: state with reasons, traffic, revisions, pods, events; a service if no KIND is given.

    For a service that is not ready, this includes the last lines of its log.
    """
    if len(words) == 1 and "/" in words[0]:
        words = tuple(words[0].split("/", 1))
    if len(words) > 2:
        fail_usage(f"describe takes a kind and a name, not {len(words)} words")
    name = words[-1]
    kind = kind_named(words[0]) if len(words) == 2 else SERVING_SERVICE
    if kind == SERVING_SERVICE and len(words) == 1 and is_workload(served_of(api, name)):
        kind = SCALED_WORKLOAD
    if kind == SERVING_SERVICE:
        service = service_of(api, name)
        if output == "json":
            click.echo(json.dumps(_as_json(api, service), indent=2))
        else:
            click.echo("\n".join(_service_lines(api, service, now_s=time.time())))
        return
    resource = object_of(api, kind, name)
    if output == "json":
        click.echo(json.dumps({"object": resource, "events": events_of(api, [resource])}, indent=2))
    else:
        click.echo("\n".join(_other_lines(api, kind, resource, now_s=time.time())))


def _as_json(api: ApiClient, service: Object) -> Object:
    name = name_of(service)
    revisions = revisions_of(api, name)
    return {
        "service": service,
        "revisions": revisions,
        "pods": items_of(api, POD, selector_of(name)),
        "events": events_of(api, [service, *revisions]),
    }


def _service_lines(api: ApiClient, service: Object, *, now_s: float) -> Iterator[str]:
    name, ready = name_of(service), condition_of(service, "Ready")
    revisions, pods = revisions_of(api, name), items_of(api, POD, selector_of(name))
    newest = str(nested(service, "status", "latestCreatedRevisionName") or "")
    log = last_lines(api, newest, count=_LOG_LINES) if newest and ready.get("status") != "True" else []
    # The log at the end has the whole message.
    yield from _head(service, now_s=now_s, is_brief=bool(log))
    if nested(service, "status", "url"):
        address = address_of(api, service)
        yield f"URL        {address.url}"
        if address.connect_host != address.host:
            yield f"           {address.curl}"
        yield from _short_name(api, service)
    events = events_of(api, [service, *revisions, *pods])
    yield from _tcp(service, events)
    yield from _traffic(service)
    yield from _conditions(service)
    if revisions:
        header = header_of(REVISION)
        assert header is not None
        dormant = dormant_counts(pods)
        revision_rows = [
            revision_row(revision, now_s=now_s, dormant_count=dormant[namespace_of(revision), name_of(revision)])
            for revision in revisions
        ]
        yield from _titled("Revisions", aligned([header, *revision_rows], indent="  "))
        yield from _revision_problems(revisions, printed=ready.get("message", ""))
    yield from _pods(api, selector_of(name), none=missing_pods_reason(service))
    gaps = filter(None, (condition_of(pod, CONDITION_ISOLATED).get("message") for pod in pods))
    yield from (line for gap in dict.fromkeys(gaps) for line in wrapped(f"Isolation: {gap}", indent="  "))
    over = [pod for pod in pods if nested(pod, "status", "phase") == "Failed" and nested(pod, "status", "message")]
    for pod in over:
        text = f"{nested(pod, 'status', 'reason') or 'Failed'}: {name_of(pod)}: {nested(pod, 'status', 'message')}"
        yield from wrapped(text.strip(), indent="  ")
    yield from _event_lines(events, now_s=now_s, printed=ready.get("message", ""))
    if log:
        yield from _titled(f"Last lines of the log of {newest}", [f"  {line}" for line in log])


def _other_lines(api: ApiClient, kind: Kind, resource: Object, *, now_s: float) -> Iterator[str]:
    yield from _head(resource, now_s=now_s)
    titles, rows = server_table(api, kind, name=name_of(resource), selector="", everywhere=False)
    width = max(map(len, titles))
    yield from (
        line
        for title, cell in zip(titles, rows[0], strict=True)
        if title not in {"NAME", "AGE"} and cell
        for line in [f"{title.capitalize():<{width}}  {printable(cell)}"]
    )
    yield from _conditions(resource)
    pods: list[Object] = []
    if kind == POD:
        yield from _containers(resource)
    # An empty selector selects all pods.
    if kind == SCALED_WORKLOAD and (selector := str(nested(resource, "status", "selector") or "")):
        pods = items_of(api, POD, selector)
        yield from _pods(api, selector, none=missing_pods_reason(resource))
    yield from _event_lines(events_of(api, [resource, *pods]), now_s=now_s)


def _pods(api: ApiClient, selector: str, *, none: str) -> Iterator[str]:
    titles, rows = server_table(api, POD, name="", selector=selector, everywhere=False)
    yield from _titled("Pods", aligned([titles, *rows], indent="  ") if rows else [f"  none: {none}"])


def _head(resource: Object, *, now_s: float, is_brief: bool = False) -> Iterator[str]:
    ready = condition_of(resource, "Ready")
    state = ready.get("status", "")
    word = {"True": "ready", "False": "not ready", "Unknown": "not ready yet"}.get(state, "")
    place = nested(resource, "metadata", "namespace")
    yield paint(f"{str(resource.get('kind', '')).lower()} {name_of(resource)}", None, bold=True) + (
        f" in {place}" if place else ""
    )
    if word:
        yield f"State      {paint(word, _COLORS[state])}"
        if state != "True" and ready.get("message"):
            message = _brief(ready["message"]) if is_brief else ready["message"]
            yield from wrapped(f"{ready.get('reason', '')}: {message}".removeprefix(": "), indent=" " * 11)
    yield f"Age        {age_text(seconds_since(nested(resource, 'metadata', 'creationTimestamp'), now_s))}"


def _brief(message: str) -> str:
    """Shorten a message to its first and last line: the failure, and the error at the end of a traceback."""
    first, *others = message.splitlines()
    return f"{first} ... {others[-1].strip()}" if others else first


def _short_name(api: ApiClient, service: Object) -> Iterator[str]:
    """A line with the service's URL under its short name; if pods on this machine cannot use it, also the reason."""
    url = short_url(service)
    if url and api.state_path is not None:
        yield f"{'':<11}{url} in pods of {namespace_of(service)}"
        problem = short_name_problem(service, api.state_path)
        yield from wrapped(problem, indent=" " * 11) if problem else ()


def _tcp(service: Object, events: list[Object]) -> Iterator[str]:
    """The TCP ports of a service, each with its problem, if any."""
    states = tcp_states(events)
    for index, port in enumerate(route_policy(annotations_of(service)).tcp_ports):
        problem = states.get(port.number, "")
        word = paint("unavailable", "red") if problem else "listening" if port.number in states else "not listening yet"
        yield f"{'TCP' if not index else '':<11}{port.number} {word}"
        yield from wrapped(problem, indent=" " * 11) if problem else ()


def _traffic(service: Object) -> Iterator[str]:
    rows = []
    for target in nested(service, "status", "traffic") or ():
        name = str(target.get("revisionName", ""))
        latest = " (latest)" if target.get("latestRevision") else ""
        tag = f"tag {target['tag']}: {target.get('url', '')}" if target.get("tag") else ""
        rows.append([f"{target.get('percent') or 0}%", name + latest, tag])
    if rows:
        yield from _titled("Traffic", aligned(rows, indent="  "))


def _conditions(described: Object) -> Iterator[str]:
    conditions = nested(described, "status", "conditions") or ()
    if not conditions:
        return
    yield ""
    yield "Conditions"
    width = max(len(other["type"]) for other in conditions)
    shown = {condition_of(described, "Ready").get("message")}
    for entry in conditions:
        status = entry.get("status", "")
        reason = printable(entry.get("reason", "")) if status != "True" else ""
        yield f"  {entry['type']:<{width}}  {paint(status, _COLORS.get(status, ''))}  {reason}".rstrip()
        # Conditions repeat each other's message; print a message once.
        if entry.get("message") and status != "True" and entry["message"] not in shown:
            shown.add(entry["message"])
            yield from wrapped(entry["message"], indent=" " * (width + 4))


def _containers(pod: Object) -> Iterator[str]:
    rows = []
    lists = (nested(pod, "status", field) or () for field in ("initContainerStatuses", "containerStatuses"))
    for container in itertools.chain.from_iterable(lists):
        name = next(iter(container.get("state") or ()), "unknown")
        state = nested(container, "state", name) or {}
        last = nested(container, "lastState", "terminated") or {}
        ended = f"last ended with {last.get('exitCode')} {last.get('reason', '')}".rstrip() if last else ""
        rows.append(
            [
                container.get("name"),
                name,
                state.get("reason", ""),
                counted(container.get("restartCount", 0), "restart"),
                ended,
            ]
        )
    if rows:
        yield from _titled("Containers", aligned(rows, indent="  "))


def _revision_problems(revisions: list[Object], *, printed: str) -> Iterator[str]:
    """Why revisions are not ready; a message that the service repeats is printed only once."""
    for revision in revisions:
        ready = condition_of(revision, "Ready")
        message = ready.get("message", "").splitlines()[:1]
        if ready.get("status") != "True" and message and message[0] not in printed:
            yield from wrapped(f"{name_of(revision)}: {message[0]}", indent="  ")


def _titled(title: str, lines: list[str]) -> Iterator[str]:
    yield ""
    yield title
    yield from lines


def _event_lines(events: list[Object], *, now_s: float, printed: str = "") -> Iterator[str]:
    """The lines of events. A message of several lines is printed only once."""
    if not events:
        return
    left_out = len(events) - _EVENTS_SHOWN_MAX
    yield ""
    yield "Events" + (f" (the last {_EVENTS_SHOWN_MAX} of {len(events)})" if left_out > 0 else "")
    for event in events[-_EVENTS_SHOWN_MAX:]:
        age = age_text(seconds_since(last_seen(event), now_s))
        times = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
        reason = printable(str(event.get("reason", "")))
        mark = paint(reason, "yellow") if event.get("type") == "Warning" else reason
        yield f"  {age:>6}  {nested(event, 'involvedObject', 'name')}  {mark}{times}"
        message = str(event.get("message", ""))
        if "\n" not in message or message.rstrip(".") not in printed:
            yield from wrapped(message, indent=" " * 10)
        printed += f"\n{message}"
