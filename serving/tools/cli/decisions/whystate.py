"""The present state in ``serving why``: revisions that are not ready, dormant and ejected pods."""

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Iterator

import msgspec

from serving.core.model.knative import CONDITION_DORMANT, CONDITION_READY, DORMANT_REASONS, REVISION_LABEL
from serving.core.model.objects import Object, condition_of, labels_of, name_of, nested
from serving.core.model.rolloutcheck import ROLLED_BACK_REASON
from serving.core.traffic.ejection import EjectionReport
from serving.net.cluster.kinds import HORIZONTAL_POD_AUTOSCALER, REVISION, SERVING_SERVICE
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.objects import condition, last_lines, revisions_of
from serving.tools.cli.client.output import clock_text
from serving.tools.cli.client.reach import Reach
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.client.stats import read_page

_LOG_LINES = 5
_TIMEOUT_S = 5.0


def unready_lines(api: ApiClient, name: str) -> list[str]:
    """Lines about the revision NAME, or about the newest revision of the service NAME; none if it is ready or unknown."""
    status, service = api.call("GET", path_of(SERVING_SERVICE, api.namespace, name))
    ready = condition_of(service, CONDITION_READY) if status < 400 else {}
    undone = [ready["message"].replace('"', "")] if ready.get("reason") == ROLLED_BACK_REASON else []
    return undone + [line for revision in _revisions(api, name) for line in _lines(api, revision)]


def pod_scaler_lines(api: ApiClient, is_ours: Callable[[str], bool]) -> Iterator[str]:
    """The last decisions of HorizontalPodAutoscalers, for revisions scaled by them."""
    status, listing = api.call("GET", path_of(HORIZONTAL_POD_AUTOSCALER, api.namespace))
    for scaler in listing.get("items") or () if status < 400 else ():
        if not is_ours(name_of(scaler)):
            continue
        messages = [condition_of(scaler, kind).get("message") for kind in ("ScalingActive", "AbleToScale")]
        what = next((text for text in messages if text), "nothing is decided yet")
        yield f"{name_of(scaler)} by its HorizontalPodAutoscaler (class hpa): {what}"


def dormant_lines(pods: Iterable[Object], is_ours: Callable[[str], bool]) -> Iterator[str]:
    """A line for each of these revisions with pods that may sleep: how many do, since when, and refusals."""
    by_revision: dict[str, list[dict[str, str]]] = {}
    for pod in pods:
        revision, its = labels_of(pod).get(REVISION_LABEL, ""), condition(pod, CONDITION_DORMANT)
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
    what = ": ".join(part for part in (ready.get("reason", ""), message) if part) or "its pods are starting"
    first, *more = what.splitlines()
    yield f"{name} is not ready: {first}"
    yield from (f"  {line}" for line in more)
    log = [line for line in last_lines(api, name, count=_LOG_LINES) if line.strip() and line.strip() not in what]
    if log:
        yield f"last lines of the log of {name}:"
        yield from (f"  {line}" for line in log)


def ejected_lines(reach: Reach, namespace: str, is_ours: Callable[[str], bool]) -> list[str]:
    """A line for each pod of these revisions that an activator has ejected or is trying again."""
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
            # `serving doctor` reports one that does not respond.
            continue
        yield name, reports


def _line(activator: str, report: EjectionReport) -> str:
    if report.is_silent:
        what = f"answers nothing ({report.in_flight_count} requests inside, ejected {_times(report.failure_count)})"
    else:
        what = f"takes no connection ({_times(report.failure_count)})"
    if report.until_wall_s is None:
        then = "gets requests again, and has not answered one yet"
    else:
        then = f"gets no requests until {clock_text(report.until_wall_s)}"
    return f"{clock_text(report.since_wall_s)} {report.revision} pod {report.pod} ({report.address}) {what}; {activator}: it {then}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"
