"""What a pod takes from ConfigMaps and Secrets: which of them it names, and what of them becomes environment and files.

Input: the pod's manifest and the data of what it names; output: names and values, paths and bytes. A name that is
missing and not optional is ``InvalidValue``, and so is a key that is no file name: nothing is written outside of a
volume's folder. Follows core/v1 EnvVar, EnvFromSource, Volume and VolumeMount, for the sources that Knative allows.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from serving.cluster.port import Object
from serving.model.errors import InvalidValue

__all__ = ["Reference", "Sources", "container_environment", "data_of", "references", "volume_files"]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A ConfigMap or Secret by name."""

    kind: str
    name: str


Sources = Mapping[Reference, Mapping[str, bytes]]
"""The data of those that exist."""


def references(pod: Object) -> frozenset[Reference]:
    """All that a pod names, optional ones too."""
    found: list[Reference] = []
    for container in pod["spec"]["containers"]:
        for one in container.get("env", ()):
            found += [reference for reference, _, _ in _keyed(one.get("valueFrom") or {})]
        for one in container.get("envFrom", ()):
            found += [reference for reference, _ in _whole(one)]
    for volume in pod["spec"].get("volumes", ()):
        for part in _parts(volume):
            found += [reference for reference, _ in _whole(part)]
    return frozenset(found)


def data_of(kind: str, whole: Object) -> dict[str, bytes]:
    """The data of a ConfigMap or Secret. What is no base64 is left out: the API would have refused it."""
    texts = {key: value.encode() for key, value in (whole.get("data") or {}).items() if kind == "ConfigMap"}
    encoded = whole.get("binaryData" if kind == "ConfigMap" else "data") or {}
    for key, value in encoded.items():
        try:
            texts[key] = base64.b64decode(value, validate=True)
        except binascii.Error:
            continue
    return texts


def container_environment(pod: Object, container: Object, *, sources: Sources, address: str) -> dict[str, str]:
    """The environment that a container's manifest asks for. Raises ``InvalidValue``."""
    found: dict[str, str] = {}
    for one in container.get("envFrom", ()):
        prefix = one.get("prefix", "")
        for reference, is_optional in _whole(one):
            for key, value in _data(sources, reference, is_optional=is_optional).items():
                found[prefix + key] = value.decode(errors="replace")
    for one in container.get("env", ()):
        if "valueFrom" in one:
            found.update(_from(pod, one, sources=sources, address=address))
        else:
            found[one["name"]] = _expanded(one.get("value", ""), found)
    return found


def volume_files(pod: Object, volume: Object, sources: Sources) -> dict[str, bytes]:
    """The files of a volume by name in it; none of an emptyDir. Raises ``InvalidValue``."""
    files: dict[str, bytes] = {}
    for part in _parts(volume):
        for reference, is_optional in _whole(part):
            data = _data(sources, reference, is_optional=is_optional)
            files |= _chosen(data, _items(part), reference=reference, is_optional=is_optional)
        for item in (part.get("downwardAPI") or {}).get("items", ()):
            text = _field(pod, (item.get("fieldRef") or {}).get("fieldPath", ""), address="")
            files[item["path"]] = text.encode()
    for name in files:
        if name.startswith("/") or any(word in {"", ".", ".."} for word in name.split("/")):
            raise InvalidValue(text=name, expected=f"a file name as a key of volume {volume['name']}")
    return files


def _parts(volume: Object) -> Sequence[Object]:
    projected = volume.get("projected")
    return projected.get("sources", ()) if projected else (volume,)


def _whole(one: Object) -> Iterator[tuple[Reference, bool]]:
    """ConfigMaps and Secrets that are taken as a whole, in any of the shapes that the API has for that."""
    for field, kind in (
        ("configMapRef", "ConfigMap"),
        ("secretRef", "Secret"),
        ("configMap", "ConfigMap"),
        ("secret", "Secret"),
    ):
        part = one.get(field)
        if part:
            yield Reference(kind=kind, name=part.get("name") or part.get("secretName", "")), bool(part.get("optional"))


def _keyed(value_from: Object) -> Iterator[tuple[Reference, str, bool]]:
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        part = value_from.get(field)
        if part:
            yield Reference(kind=kind, name=part.get("name", "")), part["key"], bool(part.get("optional"))


def _items(part: Object) -> Sequence[Object]:
    found: Sequence[Object] = (part.get("configMap") or part.get("secret") or {}).get("items", ())
    return found


def _chosen(
    data: Mapping[str, bytes], items: Sequence[Object], *, reference: Reference, is_optional: bool
) -> dict[str, bytes]:
    if not items:
        return dict(data)
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not is_optional:
        raise InvalidValue(text=missing[0], expected=f"a key of {reference.kind} {reference.name}")
    return {item["path"]: data[item["key"]] for item in items if item["key"] in data}


def _from(pod: Object, one: Object, *, sources: Sources, address: str) -> dict[str, str]:
    value_from = one["valueFrom"]
    for reference, key, is_optional in _keyed(value_from):
        data = _data(sources, reference, is_optional=is_optional)
        if key in data:
            return {one["name"]: data[key].decode(errors="replace")}
        if not is_optional:
            raise InvalidValue(text=key, expected=f"a key of {reference.kind} {reference.name}")
        return {}
    path = (value_from.get("fieldRef") or {}).get("fieldPath", "")
    return {one["name"]: _field(pod, path, address=address)}


def _data(sources: Sources, reference: Reference, *, is_optional: bool) -> Mapping[str, bytes]:
    found = sources.get(reference)
    if found is None and not is_optional:
        raise InvalidValue(text=reference.name, expected=f"the name of a {reference.kind} that exists")
    return found or {}


def _field(pod: Object, path: str, *, address: str) -> str:
    """A field of the pod as the downward API names it."""
    metadata = pod["metadata"]
    for kind in ("labels", "annotations"):
        key = path.removeprefix(f"metadata.{kind}['").removesuffix("']")
        if key != path:
            return str((metadata.get(kind) or {}).get(key, ""))
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata.get("uid", ""),
        "spec.nodeName": "local",
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
    }
    if path not in fields:
        raise InvalidValue(text=path, expected=f"one of {', '.join(sorted(fields))}")
    return str(fields[path])


def _expanded(word: str, given: Mapping[str, str]) -> str:
    """``$(NAME)`` as Kubernetes expands it; a name that is not there stays as it is."""
    for name, value in given.items():
        word = word.replace(f"$({name})", value)
    return word
