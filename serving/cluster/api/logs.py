"""What containers have written: the options of ``GET .../pods/POD/log``, and the port to whoever keeps the lines.

The server knows no files. Whoever runs pods hands in a ``PodLogs``; without one the answer is 501.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from serving.cluster.api.status import Fault
from serving.cluster.port import Object

__all__ = ["LogOptions", "PodLogs", "log_options"]

_TRUE = {"1", "true", "True"}
# Runs beside the containers of a local pod, whose spec does not name it.
_QUEUE_PROXY = "queue-proxy"


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines are wanted."""

    container: str
    """The container's name; never empty."""

    follow: bool = False
    """Go on with new lines until the container ends."""

    previous: bool = False
    """Those of the run before the last restart."""

    timestamps: bool = False
    """Each line after the time at which it was written."""

    tail_line_count: int | None = None
    """Only so many lines from the end; None is all."""

    limit_bytes: int | None = None
    """At most so many bytes; None is no limit."""

    since_s: float | None = None
    """Only lines of the last so many seconds; None is all."""

    since_stamp: str = ""
    """Only lines from this time on, as the API writes times; "" is all."""

    @property
    def is_by_time(self) -> bool:
        """Whether the time of each line matters."""
        return self.timestamps or self.since_s is not None or bool(self.since_stamp)


class PodLogs(Protocol):
    """Whoever keeps what containers write, as it was written: the time of a line is not known."""

    def read(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]:
        """Pieces of the log in order. It ends at the end, or with the container if it follows. Raises ``NotFound``."""
        ...


def log_options(pod: Object, query: Mapping[str, str]) -> LogOptions:
    """What a request asks for. Raises ``Fault`` 400."""
    return LogOptions(
        container=_container(pod, query.get("container", "")),
        follow=query.get("follow", "") in _TRUE,
        previous=query.get("previous", "") in _TRUE,
        timestamps=query.get("timestamps", "") in _TRUE,
        tail_line_count=_whole(query, "tailLines"),
        limit_bytes=_whole(query, "limitBytes"),
        since_s=_whole(query, "sinceSeconds"),
        since_stamp=query.get("sinceTime", ""),
    )


def _container(pod: Object, wanted: str) -> str:
    metadata = pod.get("metadata", {})
    names = [one.get("name", "") for one in pod.get("spec", {}).get("containers", ())]
    name = metadata.get("name", "")
    default = (metadata.get("annotations") or {}).get("kubectl.kubernetes.io/default-container", "")
    chosen = wanted or default or (names[0] if len(names) == 1 else "")
    if not chosen:
        raise Fault(400, f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
    if chosen not in {*names, _QUEUE_PROXY}:
        raise Fault(400, f"container {chosen} is not valid for pod {name}")
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
