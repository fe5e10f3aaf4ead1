"""Default requests and limits of containers.

Source of keys: knative/serving 98e5ef90, pkg/apis/config/defaults.go.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from serving.core.model.quantity import parse_bytes, parse_millicores
from serving.core.settings.knob import Knob, Unit, Value


def _read_cpu(text: str) -> Value:
    if text:
        parse_millicores(text)
    return text


def _read_bytes(text: str) -> Value:
    if text:
        parse_bytes(text)
    return text


CPU = Unit(name="cpu quantity, or nothing", plain="text", read=_read_cpu, read_plain=_read_cpu, write=str)
STORAGE = Unit(name="quantity of bytes, or nothing", plain="text", read=_read_bytes, read_plain=_read_bytes, write=str)


def _default(key: str, unit: Unit) -> Knob:
    return Knob(key=key, config_map="config-defaults", unit=unit, live=True)


class RevisionResources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Default requests and limits of each container of a new revision. An empty text sets neither."""

    cpu_request: Annotated[str, _default("revision-cpu-request", CPU)] = ""
    """Cpu that a container requests by default. Default: Knative, empty."""

    memory_request: Annotated[str, _default("revision-memory-request", STORAGE)] = ""
    """Memory that a container requests by default. Default: Knative, empty."""

    storage_request: Annotated[str, _default("revision-ephemeral-storage-request", STORAGE)] = ""
    """Disk that a container requests by default. Default: Knative, empty."""

    cpu_limit: Annotated[str, _default("revision-cpu-limit", CPU)] = ""
    """Default cpu limit of a container. Default: Knative, empty."""

    memory_limit: Annotated[str, _default("revision-memory-limit", STORAGE)] = ""
    """Default memory limit of a container. Default: Knative, empty."""

    storage_limit: Annotated[str, _default("revision-ephemeral-storage-limit", STORAGE)] = ""
    """Default disk limit of a container. Default: Knative, empty."""

    @property
    def requests(self) -> Mapping[str, str]:
        """The default requests by resource name."""
        return _written(self.cpu_request, self.memory_request, self.storage_request)

    @property
    def limits(self) -> Mapping[str, str]:
        """The default limits by resource name."""
        return _written(self.cpu_limit, self.memory_limit, self.storage_limit)


def _written(cpu: str, memory: str, storage: str) -> Mapping[str, str]:
    quantities = {"cpu": cpu, "memory": memory, "ephemeral-storage": storage}
    return {name: quantity for name, quantity in quantities.items() if quantity}
