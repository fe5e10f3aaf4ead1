"""The downward API: fields of a pod and resources of its containers, as texts in their environment and files.

Follows core/v1 ObjectFieldSelector and ResourceFieldSelector. Every error is an ``InvalidValue``.
"""

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import msgspec

from serving.model.errors import InvalidValue
from serving.model.objects import Object, nested
from serving.model.quantity import parse_bytes, parse_millicores

_MILLI = 1000
_RESOURCES = ("limits.cpu", "limits.memory", "requests.cpu", "requests.memory")


def _cores(text: str) -> Fraction:
    return Fraction(parse_millicores(text), _MILLI)


_READERS: dict[str, Callable[[str], int | Fraction]] = {"cpu": _cores, "memory": parse_bytes}


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, its address, and what its node has for pods: ``allocatable`` are quantities by resource ("cpu": "2")."""

    pod: Object
    address: str = ""
    allocatable: Mapping[str, str] = {}

    def field(self, path: str) -> str:
        """A single field, such as "metadata.name" or "metadata.labels['app']"."""
        metadata = self.pod["metadata"]
        for kind in ("labels", "annotations"):
            key = path.removeprefix(f"metadata.{kind}['").removesuffix("']")
            if key != path:
                return str((metadata.get(kind) or {}).get(key, ""))
        fields = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata.get("uid", ""),
            "spec.nodeName": self.pod["spec"].get("nodeName", ""),
            "spec.serviceAccountName": self.pod["spec"].get("serviceAccountName", "default"),
            "status.podIP": self.address,
            "status.podIPs": self.address,
            "status.hostIP": "127.0.0.1",
            "status.hostIPs": "127.0.0.1",
        }
        if path not in fields:
            raise InvalidValue(text=path, expected=f"one of {', '.join(sorted(fields))}")
        return str(fields[path])

    def file(self, item: Object) -> str:
        """The content of a file of a downwardAPI volume; all labels or annotations are one line each, ``key="value"``."""
        if item.get("resourceFieldRef"):
            selector = item["resourceFieldRef"]
            return self.resource(selector, container=selector.get("containerName", ""))
        path = (item.get("fieldRef") or {}).get("fieldPath", "")
        for kind in ("labels", "annotations"):
            if path == f"metadata.{kind}":
                pairs = sorted((self.pod["metadata"].get(kind) or {}).items())
                return "\n".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in pairs)
        return self.field(path)

    def resource(self, selector: Object, *, container: str) -> str:
        """A limit or request of the container of that name, in units of the divisor, rounded up.

        A limit that is not set is what the node has, as in Kubernetes; a request that is not set is the limit, or 0.
        """
        resource = selector.get("resource", "")
        if resource not in _RESOURCES:
            raise InvalidValue(text=resource, expected=f"one of {', '.join(_RESOURCES)}")
        kind, _, name = resource.partition(".")
        containers = (*self.pod["spec"]["containers"], *self.pod["spec"].get("initContainers", ()))
        found = next((one for one in containers if one.get("name", "") == container), None)
        if found is None:
            raise InvalidValue(text=container, expected="the name of a container of the pod")
        limit = nested(found, "resources", "limits", name)
        if kind == "requests":
            text = nested(found, "resources", "requests", name) or limit or "0"
        else:
            text = limit or self.allocatable.get(name, "0")
        read = _READERS[name]
        # A divisor of 0 means its default.
        divisor = read(str(selector.get("divisor", "1"))) or 1
        return str(math.ceil(Fraction(read(str(text))) / divisor))
