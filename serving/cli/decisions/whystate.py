"""Explains state for ``serving why``: unready revisions, HorizontalPodAutoscalers and ejected pods."""

import datetime as dt
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from serving.cli.client.api import ApiClient
from serving.cli.client.objects import condition, items_of, last_lines, revisions_of
from serving.cli.client.output import clock_text
from serving.cli.client.resources import path_of
from serving.cli.services.get import watched
from serving.cluster.kinds import EVENT, HORIZONTAL_POD_AUTOSCALER, REVISION, SERVING_SERVICE
from serving.home.state import StateFolder
from serving.model.objects import Object, condition_of, name_of, nested
from serving.traffic.ejection import EjectionReport

_LOG_LINES = 5

_REASON = "Scaled"
_PAGE = "-metrics"
_TIMEOUT_S = 5.0


def unready_lines(api: ApiClient, name: str) -> list[str]:
    """Lines about the revision NAME, or about the newest revision of the service NAME; none if it is ready or unknown."""
    return [line for revision in _revisions(api, name) for line in _lines(api, revision)]


def pod_scaler_lines(api: ApiClient, is_ours: Callable[[str], bool]) -> Iterator[str]:
    """The last decisions of HorizontalPodAutoscalers, for revisions scaled by them."""
    status, found = api.call("GET", path_of(HORIZONTAL_POD_AUTOSCALER, api.namespace))
    for one in found.get("items") or () if status < 400 else ():
        if not is_ours(name_of(one)):
            continue
        said = [condition_of(one, kind).get("message") for kind in ("ScalingActive", "AbleToScale")]
        what = next((text for text in said if text), "nothing is decided yet")
        yield f"{name_of(one)} by its HorizontalPodAutoscaler (class hpa): {what}"


def _revisions(api: ApiClient, name: str) -> list[Object]:
    status, _ = api.call("GET", path_of(SERVING_SERVICE, api.namespace, name))
    if status < 400:
        # An older revision that failed was superseded: it explains nothing about the present.
        return revisions_of(api, name)[:1]
    status, revision = api.call("GET", path_of(REVISION, api.namespace, name))
    return [revision] if status < 400 else []


def _lines(api: ApiClient, revision: Object) -> Iterator[str]:
    ready = condition(revision)
    if not ready or ready.get("status") == "True" or nested(revision, "spec", "servingState") == "Retired":
        return
    name = name_of(revision)
    message = ready.get("message", "").strip()
    what = ": ".join(one for one in (ready.get("reason", ""), message) if one) or "its pods are starting"
    first, *more = what.splitlines()
    yield f"{name} is not ready: {first}"
    yield from (f"  {line}" for line in more)
    log = [line for line in last_lines(api, name, count=_LOG_LINES) if line.strip() and line.strip() not in what]
    if log:
        yield f"last lines of the log of {name}:"
        yield from (f"  {line}" for line in log)


class ScaleEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change: time (seconds since the epoch), revision, text."""

    at_s: float
    revision: str
    sentence: str


def past_changes(api: ApiClient, is_ours: Callable[[str], bool]) -> list[ScaleEvent]:
    """The recorded changes of these revisions in the namespace, oldest first."""
    said = [_change_of(one) for one in items_of(api, EVENT)]
    return sorted((one for one in said if one is not None and is_ours(one.revision)), key=lambda one: one.at_s)


def coming_changes(api: ApiClient, is_ours: Callable[[str], bool], *, since_s: float) -> Iterator[ScaleEvent]:
    """The changes from a time on, as they arrive, without end. Raises ``ServingError`` when the API refuses."""
    seen: set[str] = set()
    for event in watched(api, EVENT):
        said = None if event["type"] in {"DELETED", "BOOKMARK"} else _change_of(event["object"])
        version = str(nested(event, "object", "metadata", "resourceVersion"))
        # A watch that was cut off begins with all that is there.
        if said is not None and said.at_s >= since_s and version not in seen and is_ours(said.revision):
            seen.add(version)
            yield said


def _change_of(event: Object) -> ScaleEvent | None:
    if nested(event, "involvedObject", "kind") != REVISION.name or event.get("reason") != _REASON:
        return None
    stamp = str(event.get("lastTimestamp") or nested(event, "metadata", "creationTimestamp"))
    return ScaleEvent(
        at_s=dt.datetime.fromisoformat(stamp).timestamp(),
        revision=str(nested(event, "involvedObject", "name")),
        sentence=str(event.get("message", "")),
    )


def ejected_lines(state_path: Path, namespace: str, is_ours: Callable[[str], bool]) -> list[str]:
    """A line for each pod of these revisions that an activator has ejected or is trying again."""
    return [
        _line(activator, one)
        for activator, reports in _reports(state_path, namespace)
        for one in reports
        if is_ours(one.revision)
    ]


def _reports(state_path: Path, namespace: str) -> Iterator[tuple[str, list[EjectionReport]]]:
    try:
        ports = StateFolder(state_path).read_ports()
    except (OSError, ValueError):
        return
    for name, port in ports.items():
        if name.startswith("activator") and name.endswith(_PAGE):
            yield name.removesuffix(_PAGE), _reports_of(port, namespace)


def _reports_of(port: int, namespace: str) -> list[EjectionReport]:
    """Read one activator's ejections; empty if it does not respond (`serving doctor` reports that)."""
    try:
        url = f"http://127.0.0.1:{port}/ejections/{namespace}"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            return msgspec.json.decode(response.read(), type=list[EjectionReport])
    except (OSError, urllib.error.URLError, msgspec.DecodeError):
        return []


def _line(activator: str, one: EjectionReport) -> str:
    if one.is_silent:
        what = f"answers nothing ({one.in_flight_count} requests inside, ejected {_times(one.failure_count)})"
    else:
        what = f"takes no connection ({_times(one.failure_count)})"
    if one.until_wall_s is None:
        then = "gets requests again, and has answered none of them yet"
    else:
        then = f"gets no requests until {clock_text(one.until_wall_s)}"
    return f"{clock_text(one.since_wall_s)} {one.revision} pod {one.pod} ({one.address}) {what}; {activator}: it {then}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"
