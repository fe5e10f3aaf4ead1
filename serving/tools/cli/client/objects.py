"""Reads API objects for the CLI: conditions, revisions, and the last log lines of pods. Fields may be missing."""

import contextlib
from collections.abc import Iterable
from typing import Any

from serving.controller.values.naming import deployment_name
from serving.core.model.errors import InvalidValue, ServingError
from serving.core.model.knative import QUEUE_PROXY, REVISION_LABEL, SERVICE_LABEL
from serving.core.model.objects import (
    Object,
    condition_of,
    is_dns_subdomain,
    is_true,
    labels_of,
    name_of,
    nested,
    timestamp_s,
)
from serving.home.pods.podfolder import excerpt
from serving.net.cluster.kinds import EVENT, POD, REVISION, SCALED_WORKLOAD, SERVING_SERVICE, Kind
from serving.net.cluster.servicepatch import age_order, newest_first
from serving.tools.cli.client.api import ApiCall, ApiClient, fail
from serving.tools.cli.client.output import printable
from serving.tools.cli.client.resources import kind_named, path_of

# The first line of a traceback is often far before the last.
_SOUGHT_LINES = 200
_NOT_FOUND = 404
_NAMES_SHOWN_MAX = 20
_OF_REVISION = REVISION_LABEL + "={}"


def is_settled(service: Object) -> bool:
    """Whether the condition Ready is True or False, rather than Unknown, for the latest generation."""
    observed = nested(service, "status", "observedGeneration")
    return observed == nested(service, "metadata", "generation") and condition_of(service, "Ready").get("status") in {
        "True",
        "False",
    }


def seconds_since(stamp: object, now_s: float) -> float | None:
    """Seconds since an API timestamp; None for an invalid timestamp."""
    at_s = timestamp_s(stamp)
    return None if at_s is None else now_s - at_s


def selector_of(*services: str) -> str:
    """The label selector that matches the objects of the named services; without names, of all services.

    A text that can be no service's name ends the command.
    """
    for name in services:
        if not is_dns_subdomain(name):
            fail(f"{name!r} is not a service's name{_kind_hint(name)}; `serving get` lists the services")
    return f"{SERVICE_LABEL} in ({','.join(services)})" if services else SERVICE_LABEL


def object_of(api: ApiClient, kind: Kind, name: str) -> Object:
    """One object by name. If it does not exist, the command ends and prints the names of existing objects."""
    return _known_object(api, kind, name, reply=api.call("GET", path_of(kind, api.namespace, name)))


def _known_object(api: ApiClient, kind: Kind, name: str, *, reply: tuple[int, Any]) -> Object:
    """The object in a reply to a GET. If the reply has none, the command ends and prints the existing names."""
    status, response = reply
    if status == _NOT_FOUND:
        fail(absence_of(api, kind, name))
    if status >= 400:
        fail(str(response.get("message", response)))
    assert isinstance(response, dict)
    return response


def absence_of(api: ApiClient, kind: Kind, name: str) -> str:
    """The message for a missing object, with the names of existing objects."""
    others = sorted(name_of(other) for other in items_of(api, kind))
    shown = [*others[:_NAMES_SHOWN_MAX], *(["..."] if len(others) > _NAMES_SHOWN_MAX else [])]
    known = f"there are {', '.join(shown)}" if others else "there is none"
    hint = _workload_hint(api, name) or _kind_hint(name) if kind == SERVING_SERVICE else ""
    where = f" in namespace {api.namespace}" if kind.namespaced else ""
    return f"no {kind.name.lower()} {name}{where}; {known}{hint}"


def _workload_hint(api: ApiClient, name: str) -> str:
    """A hint if the name is that of a ScaledWorkload and not of a service; else ""."""
    if not api.peek(path_of(SCALED_WORKLOAD, api.namespace, name)):
        return ""
    return f"; {name} is a ScaledWorkload: `serving describe {name}` shows it, `serving release {name}` ends it"


def _kind_hint(name: str) -> str:
    """A hint if the name includes a kind, as in kubectl's "ksvc/hello" and "ksvc hello"; else ""."""
    word, slash, own = name.partition("/")
    with contextlib.suppress(InvalidValue):
        kind_named(word)
        return f"; name the service alone: {own}" if slash else f"; {word} is a kind: for one object write {word}/NAME"
    return ""


def is_known(api: ApiClient, name: str) -> bool:
    """Whether a service, workload or revision with this name exists."""
    kinds = (SERVING_SERVICE, SCALED_WORKLOAD, REVISION)
    return any(api.call("GET", path_of(kind, api.namespace, name))[0] < 400 for kind in kinds)


def service_of(api: ApiClient, name: str) -> Object:
    """One Knative Service by name. If it does not exist, the command ends and prints the existing names."""
    return object_of(api, SERVING_SERVICE, name)


def served_of(api: ApiClient, name: str) -> Object:
    """One Knative Service or ScaledWorkload by name. If there is none, the command ends with the existing names."""
    reply = api.call("GET", path_of(SERVING_SERVICE, api.namespace, name))
    workload = api.peek(path_of(SCALED_WORKLOAD, api.namespace, name)) if reply[0] == _NOT_FOUND else {}
    return workload or _known_object(api, SERVING_SERVICE, name, reply=reply)


def is_workload(served: Object) -> bool:
    """Whether an object is a ScaledWorkload."""
    return served.get("kind") == SCALED_WORKLOAD.name


def pod_selectors(api: ApiClient, served: Iterable[Object]) -> tuple[str, ...]:
    """The label selectors of the pods of services and workloads; if ``served`` is empty, of all in the namespace."""
    served = tuple(served)
    services = [name_of(service) for service in served if not is_workload(service)]
    workloads = [workload for workload in served if is_workload(workload)] if served else workloads_of(api)
    # An empty selector selects all pods.
    selectors = [str(nested(workload, "status", "selector") or "") for workload in workloads]
    return (*([selector_of(*services)] if services or not served else ()), *filter(None, selectors))


def pods_by(api: ApiClient, selectors: Iterable[str]) -> list[Object]:
    """The pods selected by at least one of the selectors, without duplicates."""
    pods = [pod for selector in selectors for pod in items_of(api, POD, selector)]
    return list({name_of(pod): pod for pod in pods}.values())


def items_of(api: ApiClient, kind: Kind, selector: str = "", *, everywhere: bool = False) -> list[Object]:
    """All objects of a kind in the namespace or in all namespaces, sorted by name."""
    path = path_of(kind, None if everywhere else api.namespace)
    return _items(kind, api.must(ApiCall(path=path, query={"labelSelector": selector})))


def workloads_of(api: ApiClient, selector: str = "", *, everywhere: bool = False) -> list[Object]:
    """The ScaledWorkloads, sorted by name; empty if the API lacks the kind, or if the user may not list it."""
    path = path_of(SCALED_WORKLOAD, None if everywhere else api.namespace)
    return _items(SCALED_WORKLOAD, api.peek(path, labelSelector=selector))


def events_of(api: ApiClient, about: Iterable[Object]) -> list[Object]:
    """The Events about objects, oldest first."""
    uids = {nested(resource, "metadata", "uid") for resource in about}
    events = [event for event in items_of(api, EVENT) if nested(event, "involvedObject", "uid") in uids]
    return sorted(events, key=last_seen)


def last_seen(event: Object) -> str:
    """The timestamp of an Event's last occurrence; "" if it has none."""
    stamp = event.get("lastTimestamp") or event.get("eventTime") or nested(event, "metadata", "creationTimestamp")
    return str(stamp or "")


def _items(kind: Kind, listing: Object) -> list[Object]:
    # Items of a list lack the kind; a single object has the kind.
    own = {"apiVersion": kind.api_version, "kind": kind.name}
    return sorted(({**own, **entry} for entry in listing.get("items", ())), key=_place)


def revisions_of(api: ApiClient, *services: str) -> list[Object]:
    """The revisions of one service or of all services; the newest revision of each service is first."""
    revisions = items_of(api, REVISION, selector_of(*services))
    return newest_first(revisions)


def superseded_failures(revisions: Iterable[Object]) -> frozenset[str]:
    """The names of the failed revisions whose service has a newer revision. They do not affect the present state."""
    newest: dict[str, tuple[int, str, str]] = {}
    revisions = list(revisions)
    for revision in revisions:
        service = labels_of(revision).get(SERVICE_LABEL, "")
        newest[service] = max(newest.get(service, age_order(revision)), age_order(revision))
    return frozenset(
        name_of(revision)
        for revision in revisions
        if condition_of(revision, "Ready").get("status") == "False"
        and age_order(revision) < newest[labels_of(revision).get(SERVICE_LABEL, "")]
    )


def missing_pods_reason(served: Object) -> str:
    """Why a service or workload has no pod, such as "it is at zero"."""
    if is_workload(served) or is_true(served, "Ready"):
        return "it is at zero"
    if not nested(served, "status", "latestCreatedRevisionName"):
        return "it has no revision yet"
    return "it is not ready"


def _place(resource: Object) -> tuple[str, str]:
    return str(nested(resource, "metadata", "namespace") or ""), name_of(resource)


def app_container(pod: Object) -> str:
    """The container of the app: the first container other than the queue-proxy."""
    names = [str(container.get("name", "")) for container in nested(pod, "spec", "containers") or ()]
    return next((name for name in names if name != QUEUE_PROXY), "")


def gone_pods(api: ApiClient, scaled: Iterable[Object], *, since_s: float = 0.0) -> list[Object]:
    """The deleted pods of ``scaled`` (revisions and workloads) with logs written after ``since_s``, latest first.

    Each pod has only its name, namespace and containers. Pods of a deleted earlier revision with the same name are
    excluded. Empty on a cluster, which stores no logs of deleted pods.
    """
    from serving.home.apiserver.logoptions import KEPT_LOGS_PATH  # noqa: PLC0415 - it loads a loop, which most commands need not

    status, logs = api.call("GET", KEPT_LOGS_PATH.format(namespace=api.namespace))
    if status >= 400 or not isinstance(logs, list):
        return []
    there = {name_of(pod) for pod in items_of(api, POD)}
    begins_s = dict(map(_deployment_of, scaled))

    def is_ours(pod: str, written_s: float) -> bool:
        begin_s = begins_s.get(pod.rpartition("-")[0])
        return begin_s is not None and written_s >= max(since_s, begin_s)

    return [
        {
            "metadata": {"name": log["pod"], "namespace": api.namespace},
            "spec": {"containers": [{"name": name} for name in log["containers"]]},
        }
        for log in logs
        if log["pod"] not in there and is_ours(log["pod"], log["written_s"])
    ]


def _deployment_of(scaled: Object) -> tuple[str, float]:
    """A revision's Deployment and the revision's creation time in epoch seconds, or a workload's target and 0."""
    if is_workload(scaled):
        return str(nested(scaled, "spec", "target", "name")), 0.0
    return deployment_name(name_of(scaled)), created_s(scaled)


def created_s(created: Object) -> float:
    """The creation time of an object, in seconds since the epoch; 0 if the object has no timestamp."""
    return timestamp_s(nested(created, "metadata", "creationTimestamp")) or 0.0


def _last_gone_pod(api: ApiClient, revision: str) -> list[Object]:
    body = api.peek(path_of(REVISION, api.namespace, revision))
    return gone_pods(api, [body])[:1] if body else []


def last_lines(api: ApiClient, revision: str, *, count: int) -> list[str]:
    """The app's last log lines, from the newest pod with a log, else from the last deleted pod.

    If a pod has no output since its restart, the lines are from the previous run. A traceback includes its first line.
    """
    pods = items_of(api, POD, _OF_REVISION.format(revision))
    newest_first = sorted(pods, key=lambda pod: str(nested(pod, "metadata", "creationTimestamp")), reverse=True)
    for pod in newest_first or _last_gone_pod(api, revision):
        path = path_of(POD, api.namespace, name_of(pod), subresource="log")
        for run in ({}, {"previous": "true"}):
            query = {"container": app_container(pod), "tailLines": str(_SOUGHT_LINES), **run}
            with (
                contextlib.suppress(ServingError),
                api.stream(ApiCall(path=path, query=query, accept="*/*")) as response,
            ):
                text = b"".join(response.pieces()).decode("utf-8", "replace")
                if text.strip():
                    return [printable(line) for line in excerpt(text.splitlines(), count=count).splitlines()]
    return []
