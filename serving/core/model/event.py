"""Builds core/v1 Events about an object.

Pure. A component builds an Event here, and ``net/cluster/events.py`` writes it. Each author limits its Events, and
drops or counts repeated ones. Events with equal names are one Event. A name with a ``digest`` of the text combines
equal texts about one object. A name with a number makes later Events replace earlier ones.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

MESSAGE_LENGTH_MAX = 1024
"""The longest message, in bytes, that the API accepts."""

TRAFFIC_REASON, ROLLBACK_REASON = "TrafficAsked", "RollbackAsked"
"""The reasons of Events about traffic that the user of a Service moved."""

SCALED_REASON = "Scaled"
"""The reason of a Revision's Events about its scale."""

OOM_KILLED_REASON, UNHEALTHY_REASON = "OOMKilled", "Unhealthy"
"""Event and status reasons of a container that ended: it ran out of memory, or its probes failed."""

GIVEN_BACK_REASON = "TrafficGivenBack"
"""The reason of a Configuration's Event about a failed new revision whose traffic returned to an older one."""

_NAME_LENGTH_MAX = 253
_DIGEST_LENGTH = 16


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The object that an Event is about (``involvedObject``). Empty fields are not written."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""


class EventText(msgspec.Struct, frozen=True, kw_only=True):
    """An Event's reason, in CamelCase for programs, and its message for people. A long message is truncated."""

    reason: str
    message: str
    is_warning: bool = False


def about(body: Mapping[str, Any]) -> About:
    """The reference to an API object."""
    metadata = body["metadata"]
    return About(
        api_version=body["apiVersion"],
        kind=body["kind"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
    )


def digest(*parts: str) -> str:
    """A digest of 16 hexadecimal digits; equal texts have equal digests."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_DIGEST_LENGTH]


def name_within(name: str, suffix: str) -> str:
    """The name of an Event: the object's name, truncated to fit, and a unique suffix."""
    return f"{name[: _NAME_LENGTH_MAX - len(suffix) - 1]}.{suffix}"


def new_event(
    subject: About, words: EventText, *, suffix: str, component: str, now: str, instance: str = ""
) -> dict[str, Any]:
    """A new Event about ``subject``. ``now`` is a Kubernetes timestamp, ``component`` the author of the Event."""
    involved = {
        "apiVersion": subject.api_version,
        "kind": subject.kind,
        "name": subject.name,
        "namespace": subject.namespace,
        "uid": subject.uid,
        "resourceVersion": subject.resource_version,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name_within(subject.name, suffix), "namespace": subject.namespace},
        "involvedObject": {key: text for key, text in involved.items() if text},
        "type": "Warning" if words.is_warning else "Normal",
        "reason": words.reason,
        "message": words.message[:MESSAGE_LENGTH_MAX],
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def repeated(event: Mapping[str, Any], *, now: str) -> dict[str, Any]:
    """The merge patch that counts one more occurrence of an Event. It fails if the Event has changed meanwhile."""
    metadata = {"resourceVersion": event["metadata"].get("resourceVersion", "")}
    return {"metadata": metadata, "count": event.get("count", 1) + 1, "lastTimestamp": now}
