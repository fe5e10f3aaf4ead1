"""Container logs: the options of ``GET .../pods/POD/log``, and the port to the component that stores logs.

The server reads no files. The component that runs pods passes in a ``PodLogs``; without one the response is 501.
"""

import datetime as dt
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from serving.core.model.knative import DEFAULT_CONTAINER_ANNOTATION, QUEUE_PROXY
from serving.core.model.objects import Object
from serving.home.apiserver.requests import Fault, is_set

KEPT_LOGS_PATH = "/logs/pods/{namespace}"
"""An extension of Kubernetes: lists pods with logs, including deleted ones, as a JSON list of ``StoredLog``."""


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a log request, which select lines of one container's log, as in Kubernetes' ``PodLogOptions``.

    ``tail_line_count`` is the number of last lines. ``since_s`` is the age of the oldest line in seconds, and
    ``since_stamp`` its time as an API timestamp. None or "" means no limit.
    """

    container: str
    """The container's name; never empty."""

    follow: bool = False
    """Follow the log until the container ends."""

    previous: bool = False
    """Return the log from before the last restart."""

    timestamps: bool = False
    """Prefix each line with its time."""

    tail_line_count: int | None = None
    """Number of lines from the end; None means all."""

    limit_bytes: int | None = None
    """Most bytes to return; None means no limit."""

    since_s: float | None = None
    """Age of the oldest line, in seconds; None means no limit."""

    since_stamp: str = ""
    """Time of the first line, as an API timestamp; "" means no limit."""

    @property
    def is_by_time(self) -> bool:
        """Whether the request needs the times of lines."""
        return self.timestamps or self.since_s is not None or bool(self.since_stamp)

    def from_s(self, *, wall_s: float) -> float:
        """The time of the first line, in seconds since the epoch; 0 means no limit."""
        since_s = 0.0 if self.since_s is None else wall_s - self.since_s
        return max(since_s, moment_s(self.since_stamp) if self.since_stamp else 0.0)


class StoredLog(msgspec.Struct, frozen=True, kw_only=True):
    """The stored logs of a pod: its name, containers, and last write in seconds since the epoch."""

    pod: str
    containers: list[str]
    written_s: float


class PodLogs(Protocol):
    """Reads the logs of containers, including those of recently deleted pods."""

    def stored(self, namespace: str) -> list[StoredLog]:
        """The pods of a namespace that have logs, the most recently written first."""
        ...

    def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Yield the log in pieces until its end; when following, until the container ends. Raises ``NotFound``."""
        ...


def log_options(pod: Object, query: Mapping[str, str]) -> LogOptions:
    """Parse the options of a log request. Raises ``Fault`` 400."""
    return _options(chosen_container(pod, query.get("container", "")), query)


def stored_log_options(log: StoredLog, query: Mapping[str, str]) -> LogOptions:
    """Parse the options of a request for the log of a deleted pod. Raises ``Fault`` 400."""
    containers = [{"name": container} for container in log.containers if container != QUEUE_PROXY]
    gone: Object = {"metadata": {"name": log.pod}, "spec": {"containers": containers}}
    return _options(chosen_container(gone, query.get("container", "")), query)


def _options(container: str, query: Mapping[str, str]) -> LogOptions:
    try:
        moment_s(query.get("sinceTime") or "1970-01-01T00:00:00Z")
    except ValueError as error:
        raise Fault(400, f"sinceTime: {query['sinceTime']!r} is not a time, as 2026-11-21T10:00:00Z") from error
    return LogOptions(
        container=container,
        follow=is_set(query, "follow"),
        previous=is_set(query, "previous"),
        timestamps=is_set(query, "timestamps"),
        tail_line_count=_whole(query, "tailLines"),
        limit_bytes=_whole(query, "limitBytes"),
        since_s=_whole(query, "sinceSeconds"),
        since_stamp=query.get("sinceTime", ""),
    )


def moment_s(text: str) -> float:
    """Parse an RFC 3339 time into seconds since the epoch. Without a zone it is local. Raises ``ValueError``."""
    return dt.datetime.fromisoformat(text).timestamp()


def chosen_container(pod: Object, wanted: str, *, with_proxy: bool = True) -> str:
    """The container named in a request, or the pod's only or default one. Raises ``Fault`` 400."""
    metadata = pod.get("metadata", {})
    spec = pod.get("spec", {})
    names, first = (
        [container.get("name", "") for container in spec.get(field) or ()] for field in ("containers", "initContainers")
    )
    name = metadata.get("name", "")
    default = (metadata.get("annotations") or {}).get(DEFAULT_CONTAINER_ANNOTATION, "")
    chosen = wanted or default or (names[0] if len(names) == 1 else "")
    if not chosen:
        raise Fault(400, f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
    if chosen not in (*names, *first) and not (with_proxy and chosen == QUEUE_PROXY):
        raise Fault(
            400, f"container {chosen} is not valid for pod {name}, choose one of: [{' '.join((*names, *first))}]"
        )
    return str(chosen)


def _whole(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise Fault(400, f"{name}: {text!r} is not a whole number of 0 or more")
    return value
