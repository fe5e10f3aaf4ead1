"""``serving wait``, and the waiting of other commands: until a service is ready, in force, gone or at zero.

A failure ends the command and prints the reason.
"""

import contextlib
import http.client
import json
import re
import time
from collections.abc import Callable, Collection, Iterable
from http import HTTPStatus
from typing import NamedTuple

import click

from serving.core.model.errors import ServingError
from serving.core.model.knative import OTHER_PORT, REVISION_LABEL
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    is_being_deleted,
    is_true,
    labels_of,
    name_of,
    nested,
)
from serving.core.model.rollout import split_digest
from serving.core.model.routepolicy import route_policy
from serving.core.model.tcpevents import tcp_states
from serving.net.cluster.kinds import POD, REVISION, SCALED_WORKLOAD, SERVING_SERVICE
from serving.tools.cli.client.api import ApiClient, api_options, fail
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import (
    events_of,
    is_settled,
    is_workload,
    items_of,
    last_lines,
    pod_selectors,
    pods_by,
    revisions_of,
    selector_of,
    served_of,
    superseded_failures,
)
from serving.tools.cli.client.output import Progress, counted, output_option, print_aside
from serving.tools.cli.client.resources import path_of, wait_timeout_option
from serving.tools.cli.services.url import ServiceAddress, address_of

_PAUSE_S = 0.01
# Number of equal consecutive responses: several activators share one port.
_AGREEING = 4

_POLL_S = 0.1
_POLL_SLOWLY_S = 0.5
_LOG_LINES = 10
_IN_FORCE_WITHIN_S = 2.0
_TCP_REPORT_S = 2.0
# A route follows its configuration within milliseconds.
_ROUTE_FAILS_S = 3.0
# An app may open an administration port a moment before the port for requests.
_WRONG_PORT_S = 6.0
_ITS_PORT = re.compile(rf"listens on port (\d+){re.escape(OTHER_PORT)}")
_LISTENING = re.compile(r"\b(?:bind|listen)")
_REFUSED_PORT = re.compile(
    r"(?:permission denied|EACCES|errno: -13|address already in use|EADDRINUSE|failed to bind)(?:.*?(?:port: |:)(\d{4,5})\b)?",
    re.IGNORECASE | re.DOTALL,
)
_TIMEOUT_S = 60.0
# A revision that became ready after 3 s must stay ready for 3 s.
_SETTLE_MIN_S, _SETTLE_MAX_S = 1.0, 5.0
# What one poll adds at most to the time in which a revision stayed ready.
_TURN_MAX_S = 0.5


class NotReady(ServingError):
    """The error that a service is not ready, with the reason and the end of the log.

    ``port`` is the port that the app used instead of $PORT; 0 if it is unknown, None if the app used $PORT.
    """

    def __init__(self, message: str) -> None:
        # Landlock lets a process of this machine listen only on its assigned port.
        match = _ITS_PORT.search(message) or (_REFUSED_PORT.search(message) if _LISTENING.search(message) else None)
        self.port = int(match[1] or 0) if match else None
        super().__init__(message)


def until_in_force(address: ServiceAddress, service: Object, *, within_s: float) -> bool:
    """Wait until activators use the traffic split of the service's status; return False at the timeout."""
    deadline_s = time.monotonic() + within_s
    targets = nested(service, "status", "traffic") or ()
    expected = split_digest((str(target.get("revisionName")), target.get("percent") or 0) for target in targets)
    agreeing = 0
    while agreeing < _AGREEING:
        if time.monotonic() > deadline_s:
            return False
        if _split_at(address, within_s) == expected:
            agreeing += 1
        else:
            agreeing = 0
            time.sleep(_PAUSE_S)
    return True


def _split_at(address: ServiceAddress, timeout_s: float) -> str:
    """The digest of the traffic split that an activator uses for a host; "" without a response."""
    connection = http.client.HTTPConnection(address.connect_host, address.connect_port, timeout=timeout_s)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/", headers={"Host": address.host, "K-Network-Probe": "probe"})
        response = connection.getresponse()
        return response.read().decode("latin-1") if response.status == HTTPStatus.OK else ""
    return ""


class Readiness(NamedTuple):
    """A ready service, and how long it took to become ready."""

    service: Object
    after_s: float


def until_ready(api: ApiClient, name: str, *, timeout_s: float, patient: bool = False) -> Readiness:
    """Wait until a service is ready, and that it then stays ready for a few seconds.

    ``patient`` waits on after a failure, and returns as soon as the service is ready. Raises ``NotReady`` if the
    service fails. Exits at the timeout.
    """
    service: Object = {}
    # Since when the route failed while the configuration was ready.
    route_failed_s: list[float] = []
    wrong_port_s: list[float] = []

    def pending() -> str | None:
        service.clear()
        service.update(api.done("GET", path_of(SERVING_SERVICE, api.namespace, name)))
        if is_settled(service) and is_true(service, "Ready"):
            return None
        if not patient and _has_failed(service, route_failed_s, now_s=time.monotonic()):
            raise NotReady(failure_text(api, service))
        reason = " ".join(_reason(api, service).split())
        if OTHER_PORT not in reason:
            wrong_port_s.clear()
        elif not patient:
            wrong_port_s.append(time.monotonic())
            if wrong_port_s[-1] - wrong_port_s[0] >= _WRONG_PORT_S:
                raise NotReady(
                    f"{failure_text(api, service)}\n{name} continues to retry; deploy it again with the port that it should use"
                )
        return reason

    def late(_: str) -> str:
        return f"{name} is not ready after {timeout_s:g} s\n{failure_text(api, service)}"

    begun_s = time.monotonic()
    until(pending, f"waiting for {name} to be ready", late=late, timeout_s=timeout_s, poll_s=_POLL_S)
    after_s = time.monotonic() - begun_s
    if not patient:
        _until_settled(api, service, settle_s=min(max(after_s, _SETTLE_MIN_S), _SETTLE_MAX_S))
    if api.state_path is not None:
        # Otherwise the service is still ready.
        until_in_force(address_of(api, service), service, within_s=_IN_FORCE_WITHIN_S)
    return Readiness(service, after_s)


def until_workload_ready(api: ApiClient, name: str, *, timeout_s: float) -> Object:
    """Wait until a ScaledWorkload is ready, and return it. Exits at the timeout."""
    workload: Object = {}

    def pending() -> str | None:
        workload.clear()
        workload.update(api.done("GET", path_of(SCALED_WORKLOAD, api.namespace, name)))
        ready = condition_of(workload, "Ready")
        return None if ready.get("status") == "True" else ready.get("message", "")

    def late(state: str) -> str:
        return f"scaledworkload/{name} is not ready after {timeout_s:g} s: {state}"

    until(pending, f"waiting for {name} to be served", late=late, timeout_s=timeout_s, poll_s=_POLL_S)
    return workload


def _until_settled(api: ApiClient, service: Object, *, settle_s: float) -> None:
    """End the command if a container of the newest revision stops soon after the revision became ready.

    A server such as gunicorn listens before its workers have imported the app.
    """
    revision = str(nested(service, "status", "latestCreatedRevisionName") or "")
    selector, ready_s, settled_s = f"{REVISION_LABEL}={revision}", time.monotonic(), 0.0
    turn_s = ready_s
    before = {name_of(pod): _restarts_of(pod) for pod in items_of(api, POD, selector)}
    while before and settled_s < settle_s:
        time.sleep(_POLL_S)
        for pod in items_of(api, POD, selector):
            # The first end may precede the first reading of the pods.
            if _restarts_of(pod) > before.get(name_of(pod), 0) or is_down(pod):
                lived_s = time.monotonic() - ready_s
                fail(f"{name_of(service)}: {revision} was ready, and ended {lived_s:.1f} s later: {_last_end_of(pod)}")
        # Of the time in which the machine stood still, nothing is known.
        turn_s, turn_begun_s = time.monotonic(), turn_s
        settled_s += min(turn_s - turn_begun_s, _TURN_MAX_S)


def is_down(pod: Object) -> bool:
    """Whether a container of a pod has ended and does not run again yet. A pod that is being deleted is not down."""
    return not is_being_deleted(pod) and any(
        nested(status, "state", "running") is None
        and any(nested(status, state, "terminated") for state in ("state", "lastState"))
        for status in nested(pod, "status", "containerStatuses") or ()
    )


def _restarts_of(pod: Object) -> int:
    return sum(int(status.get("restartCount", 0)) for status in nested(pod, "status", "containerStatuses") or ())


def _last_end_of(pod: Object) -> str:
    statuses = nested(pod, "status", "containerStatuses") or ()
    ends = [nested(status, state, "terminated") for status in statuses for state in ("state", "lastState")]
    end: Object = next((end for end in ends if end), {})
    lines = str(end.get("message") or "").strip()
    return f"{end.get('reason', 'Error')}, exit code {end.get('exitCode')}" + (f"\n{lines}" if lines else "")


def _has_failed(service: Object, route_failed_s: list[float], *, now_s: float) -> bool:
    """Whether the latest generation of a service has failed.

    A failed configuration counts immediately. A failed route counts only if the configuration is ready, and after it
    has failed for a while, because it repeats the failure of the previous revision until the new one serves.
    ``route_failed_s`` stores the times at which this function has seen the route as failed.
    """
    if not is_settled(service):
        route_failed_s.clear()
        return False
    configuration = condition_of(service, "ConfigurationsReady").get("status")
    if configuration == "False" or (configuration is None and condition_of(service, "Ready").get("status") == "False"):
        return True
    if configuration != "True" or condition_of(service, "RoutesReady").get("status") != "False":
        route_failed_s.clear()
        return False
    route_failed_s.append(now_s)
    return now_s - route_failed_s[0] >= _ROUTE_FAILS_S


def until_gone(api: ApiClient, name: str, *, timeout_s: float) -> None:
    """Wait until a service and all of its pods are deleted, or until a ScaledWorkload is deleted."""

    def pending() -> str | None:
        for kind in (SERVING_SERVICE, SCALED_WORKLOAD):
            status, _ = api.call("GET", path_of(kind, api.namespace, name))
            if status != HTTPStatus.NOT_FOUND:
                return "it still exists"
        # The pods of a workload's target stay.
        return _pods_left(items_of(api, POD, selector_of(name)), " left")

    def late(state: str) -> str:
        return f"{name} is not gone after {timeout_s:g} s: {state}"

    until(pending, f"waiting for {name} to be gone", late=late, timeout_s=timeout_s, poll_s=_POLL_SLOWLY_S)


def until_zero(api: ApiClient, name: str, *, timeout_s: float) -> None:
    """Wait until the service or workload has no pods."""

    def pending() -> str | None:
        # Check the existence each time, because a deleted service has no pods either.
        served = served_of(api, name)
        # A failed, superseded revision keeps retrying, but serves nothing.
        ignored = frozenset() if is_workload(served) else superseded_failures(revisions_of(api, name))
        return _pods_left(pods_by(api, pod_selectors(api, [served])), ignored=ignored)

    def late(state: str) -> str:
        return f"{name} is not at zero after {timeout_s:g} s: {state}"

    until(pending, f"waiting for {name} to be at zero", late=late, timeout_s=timeout_s, poll_s=_POLL_SLOWLY_S)


def until(
    pending: Callable[[], str | None], what: str, *, late: Callable[[str], str], timeout_s: float, poll_s: float
) -> None:
    """Call ``pending`` every ``poll_s`` seconds until it returns None. Its text is the state that is still pending.

    ``what`` is the text of the progress. At the timeout, ``late`` returns the error message, and the command ends.
    """
    deadline_s = time.monotonic() + timeout_s
    with Progress(what) as progress:
        while (state := pending()) is not None:
            progress.update(f"{what}: {state}" if state else what)
            if time.monotonic() >= deadline_s:
                fail(late(state))
            time.sleep(poll_s)


def print_tcp_problems(api: ApiClient, service: Object) -> None:
    """Print why TCP ports of a ready service accept no connections, once activators have reported each port."""
    problems = {
        port.number: "no activator has reported it yet" for port in route_policy(annotations_of(service)).tcp_ports
    }
    deadline_s = time.monotonic() + _TCP_REPORT_S
    # A problem that was reported earlier may be over.
    while any(problems.values()) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        states = tcp_states(events_of(api, [service]))
        problems = {number: states.get(number, problem) for number, problem in problems.items()}
    for number, problem in problems.items():
        if problem:
            print_aside(f"TCP port {number} is unavailable: {problem}")


def _pods_left(pods: Iterable[Object], suffix: str = "", *, ignored: Collection[str] = frozenset()) -> str | None:
    count = sum(
        labels_of(pod).get(REVISION_LABEL) not in ignored and nested(pod, "status", "phase") != "Failed" for pod in pods
    )
    return f"{counted(count, 'pod')}{suffix}" if count else None


def failure_text(api: ApiClient, service: Object) -> str:
    """Explain an unready service, with the last log lines of the failed revision."""
    why = _reason(api, service) or "its pods are starting"
    revision = _unready_revision(api, service)
    lines = last_lines(api, revision, count=_LOG_LINES) if revision else []
    shown = [line for line in lines if line.strip() and line.strip() not in why]
    log = "".join(f"\n  {line}" for line in shown)
    return f"{name_of(service)}: {why}" + (f"\nlast lines of the log of {revision}:{log}" if log else "")


def _reason(api: ApiClient, service: Object) -> str:
    """The reason that a service is not ready: its failed condition, else the pending condition of the revision."""
    if nested(service, "status", "observedGeneration") != nested(service, "metadata", "generation"):
        # The status is that of the previous revision.
        return "its new revision is being created"
    ready = condition_of(service, "Ready")
    if ready.get("status") != "False" or not _is_of_configuration(service):
        revision = _unready_revision(api, service)
        if revision:
            waits = condition_of(api.peek(path_of(REVISION, api.namespace, revision)), "Ready")
            if waits.get("status") != "True" and waits.get("message"):
                return _worded(waits)
    return _worded(ready)


def _unready_revision(api: ApiClient, service: Object) -> str:
    """The revision because of which a service is not ready: a failed revision with traffic, else the newest."""
    newest = str(nested(service, "status", "latestCreatedRevisionName") or "")
    if condition_of(service, "RoutesReady").get("status") == "True":
        return newest
    targets = nested(service, "spec", "traffic") or ()
    named = {target["revisionName"] for target in targets if target.get("revisionName")} - {newest}
    failed = (
        name_of(revision)
        for revision in revisions_of(api, name_of(service))
        if condition_of(revision, "Ready").get("status") == "False"
    )
    return next((name for name in failed if name in named), newest)


def _is_of_configuration(service: Object) -> bool:
    return condition_of(service, "ConfigurationsReady").get("status") in {"False", "True"}


def _worded(ready: dict[str, str]) -> str:
    return ": ".join(part for part in (ready.get("reason", ""), ready.get("message", "")) if part)


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.option(
    "--for",
    "wanted",
    type=click.Choice(["ready", "gone", "zero"]),
    default="ready",
    show_default=True,
    help="State to wait for.",
)
@wait_timeout_option(_TIMEOUT_S, "--timeout")
@output_option()
@api_options
def wait(*, api: ApiClient, name: str, wanted: str, wait_s: float, output: str) -> None:
    """Wait until a service or workload is ready, gone, or has no pod; exit with 1 at the timeout.

    A service is gone once its pods are gone, too.
    """
    if wanted == "gone":
        until_gone(api, name, timeout_s=wait_s)
        done = f"{name} is gone"
    elif wanted == "zero":
        until_zero(api, name, timeout_s=wait_s)
        done = f"{name} is at zero"
    else:
        served = served_of(api, name)
        if is_workload(served):
            served = until_workload_ready(api, name, timeout_s=wait_s)
        else:
            served = until_ready(api, name, timeout_s=wait_s, patient=True).service
        done = f"{name} is ready at {nested(served, 'status', 'url')}"
    click.echo(done if output == "text" else json.dumps({"name": name, "state": wanted}))
