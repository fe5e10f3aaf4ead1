"""Resolves a pod's ConfigMaps, Secrets, tokens and downward API to environment variables and files.

Input: the pod's manifest, its facts and the data of its sources; output: names and values, paths and files. A missing
source that is not optional raises ``InvalidValue``. A key that is not a valid file name raises it too, so that no file
is written outside of a volume's folder. Follows core/v1 EnvVar, EnvFromSource, Volume and VolumeMount, for the sources
that Knative allows.
"""

import base64
import binascii
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object, nested
from serving.core.model.quantity import parse_bytes, parse_millicores
from serving.home.pods.claims import CLAIM, claims_of

ENVIRONMENT_BYTES_MAX = 2**20
"""Largest environment of a container, and largest command line, with references expanded.

The kernel takes 2 MiB of both.
"""

# A name has no "$": so that a text of many "$(" is read once.
_REFERENCE = re.compile(r"\$\$|\$\(([^$)]*)\)")


class ByteBudget:
    """Counts bytes up to a limit; ``what`` names the limit in errors."""

    def __init__(self, what: str, bytes_max: int = ENVIRONMENT_BYTES_MAX) -> None:
        self._what = what
        self._bytes_max = bytes_max
        self.spent = 0

    def spend(self, byte_count: int) -> None:
        """Count bytes before they are created. Raises ``InvalidValue`` beyond the limit."""
        self.spent += byte_count
        if self.spent > self._bytes_max:
            raise InvalidValue(text=self._what, expected=f"at most {self._bytes_max} bytes, with references expanded")


def expanded(word: str, variables: Mapping[str, str], budget: ByteBudget) -> str:
    """Expand each ``$(NAME)`` once, as Kubernetes does: unknown names stay unchanged, and ``$$`` becomes a dollar.

    Raises ``InvalidValue`` beyond the budget, before the text is created.
    """
    if "$" not in word:
        budget.spend(len(word))
        return word
    pieces, end = [], 0
    for match in _REFERENCE.finditer(word):
        name = match[1]
        pieces += [word[end : match.start()], "$" if name is None else variables.get(name, match[0])]
        budget.spend(len(pieces[-2]) + len(pieces[-1]))
        end = match.end()
    pieces.append(word[end:])
    budget.spend(len(pieces[-1]))
    return "".join(pieces)


_MILLI = 1000
_RESOURCES = ("limits.cpu", "limits.memory", "requests.cpu", "requests.memory")

TOKEN = "ServiceAccountToken"  # noqa: S105 - the name of a kind of source
"""The reference kind of a ServiceAccount token; its data is one text, with the key ""."""

# The bytes "=" and the terminator of a variable.
_SEPARATORS = 2
_FILE_MODE = 0o644
_TOKEN_LIFETIME_S = 3600


def _cores(text: str) -> Fraction:
    return Fraction(parse_millicores(text), _MILLI)


_READERS: dict[str, Callable[[str], int | Fraction]] = {"cpu": _cores, "memory": parse_bytes}


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, its address, and the resources of its node: ``allocatable`` are quantities by resource ("cpu": "2")."""

    pod: Object
    address: str = ""
    allocatable: Mapping[str, str] = {}

    def field(self, path: str) -> str:
        """One field as text, by a path such as "metadata.name" or "metadata.labels['app']". Raises ``InvalidValue``."""
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
        """The content of a downwardAPI file. All labels or all annotations become lines ``key="value"``."""
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
        """A limit or request of the container named ``container``, in units of the selector's divisor, rounded up.

        An unset limit is what the node can allocate, as in Kubernetes; an unset request is the limit, or else 0.
        """
        resource = selector.get("resource", "")
        if resource not in _RESOURCES:
            raise InvalidValue(text=resource, expected=f"one of {', '.join(_RESOURCES)}")
        kind, _, name = resource.partition(".")
        containers = (*self.pod["spec"]["containers"], *self.pod["spec"].get("initContainers", ()))
        named_container = next((candidate for candidate in containers if candidate.get("name", "") == container), None)
        if named_container is None:
            raise InvalidValue(text=container, expected="the name of a container of the pod")
        limit = nested(named_container, "resources", "limits", name)
        if kind == "requests":
            text = nested(named_container, "resources", "requests", name) or limit or "0"
        else:
            text = limit or self.allocatable.get(name, "0")
        read = _READERS[name]
        # A divisor of 0 means its default.
        divisor = read(str(selector.get("divisor", "1"))) or 1
        return str(math.ceil(Fraction(read(str(text))) / divisor))


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A ConfigMap, Secret or PersistentVolumeClaim by name, or a token by its audience (as ``name``) and lifetime."""

    kind: str
    name: str
    lifetime_s: int = 0


class VolumeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a volume: its bytes and its permission bits."""

    content: bytes
    mode: int = _FILE_MODE


Sources = Mapping[Reference, Mapping[str, bytes]]
"""The data of all existing sources."""


def references(pod: Object) -> frozenset[Reference]:
    """Everything that a pod's environment and volumes refer to, including optional references."""
    collected: list[Reference] = []
    for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
        for entry in container.get("env", ()):
            collected += [reference for reference, _, _ in _keyed(entry.get("valueFrom") or {})]
        for entry in container.get("envFrom", ()):
            collected += [reference for reference, _ in _whole(entry)]
    collected += [Reference(kind=CLAIM, name=name) for name in claims_of(pod["spec"]).values()]
    for volume in pod["spec"].get("volumes", ()):
        for part in _parts(volume):
            collected += [reference for reference, _ in _whole(part)]
            collected += [_token(token_source) for token_source in (part.get("serviceAccountToken"),) if token_source]
    return frozenset(collected)


def data_of(kind: str, whole: Object) -> dict[str, bytes]:
    """The data of a ConfigMap or Secret by key; empty for a PersistentVolumeClaim.

    Values with invalid base64 are skipped, because the API rejects them.
    """
    if kind == CLAIM:
        return {}
    texts = {key: value.encode() for key, value in (whole.get("data") or {}).items() if kind == "ConfigMap"}
    encoded = whole.get("binaryData" if kind == "ConfigMap" else "data") or {}
    for key, value in encoded.items():
        try:
            texts[key] = base64.b64decode(value, validate=True)
        except binascii.Error:
            continue
    return texts


def container_environment(facts: PodFacts, container: Object, *, sources: Sources) -> dict[str, str]:
    """The environment in a container's manifest. Raises ``InvalidValue``, also beyond ``ENVIRONMENT_BYTES_MAX``.

    All written bytes count, including those of variables that are replaced later, because this also bounds the work.
    """
    variables: dict[str, str] = {}
    budget = ByteBudget(f"the environment of container {container.get('name', '')}")
    for prefix, reference, is_optional in _distinct(container.get("envFrom", ())):
        for key, value in _data(sources, reference, is_optional=is_optional).items():
            budget.spend(len(prefix) + len(key) + len(value) + _SEPARATORS)
            variables[prefix + key] = value.decode(errors="replace")
    for variable in container.get("env", ()):
        budget.spend(len(variable["name"]) + _SEPARATORS)
        if "valueFrom" in variable:
            for name, text in _from(facts, container, variable, sources=sources).items():
                budget.spend(len(text))
                variables[name] = text
        else:
            variables[variable["name"]] = expanded(variable.get("value", ""), variables, budget)
    return variables


def _distinct(listed: Sequence[Object]) -> Iterator[tuple[str, Reference, bool]]:
    """Each distinct source in ``envFrom``, as (prefix, source, whether it is optional).

    A repeated source counts at its last position.
    """
    places: dict[tuple[str, Reference], bool] = {}
    for source in listed:
        for reference, is_optional in _whole(source):
            key = (source.get("prefix", ""), reference)
            places[key] = places.pop(key, True) and is_optional
    return ((prefix, reference, is_optional) for (prefix, reference), is_optional in places.items())


def volume_files(
    facts: PodFacts, volume: Object, sources: Sources, *, budget: ByteBudget | None = None
) -> dict[str, VolumeFile]:
    """The files of a volume by name; none for an emptyDir or a claim.

    Raises ``InvalidValue``, also beyond the budget of the pod.
    """
    files: dict[str, VolumeFile] = {}
    budget = budget or ByteBudget(f"volume {volume.get('name', '')}", sys.maxsize)
    for name in claims_of({"volumes": [volume]}).values():
        _data(sources, Reference(kind=CLAIM, name=name), is_optional=False)
    mode = _mode(volume, _FILE_MODE)
    for part in _parts(volume):
        for reference, is_optional in _whole(part):
            data = _data(sources, reference, is_optional=is_optional)
            chosen = _chosen(data, part, reference=reference, is_optional=is_optional, mode=mode)
            budget.spend(sum(len(file.content) for file in chosen.values()))
            files |= chosen
        for item in (part.get("downwardAPI") or {}).get("items", ()):
            content = facts.file(item).encode()
            budget.spend(len(content))
            files[item["path"]] = VolumeFile(content=content, mode=item.get("mode") or mode)
        token = part.get("serviceAccountToken")
        if token:
            content = _data(sources, _token(token), is_optional=False)[""]
            budget.spend(len(content))
            files[token["path"]] = VolumeFile(content=content, mode=mode)
    for name in files:
        if name.startswith("/") or any(word in {"", ".", ".."} for word in name.split("/")):
            raise InvalidValue(text=name, expected=f"a file name as a key of volume {volume['name']}")
    return files


def _mode(volume: Object, default: int) -> int:
    """The permission bits of a volume's files that set none themselves."""
    sources = (volume.get(kind) or {} for kind in ("configMap", "secret", "downwardAPI", "projected"))
    return next((int(source["defaultMode"]) for source in sources if source.get("defaultMode") is not None), default)


def _token(part: Object) -> Reference:
    lifetime_s = int(part.get("expirationSeconds") or _TOKEN_LIFETIME_S)
    return Reference(kind=TOKEN, name=part.get("audience", ""), lifetime_s=lifetime_s)


def _parts(volume: Object) -> Sequence[Object]:
    projected = volume.get("projected")
    return projected.get("sources", ()) if projected else (volume,)


def _whole(source: Object) -> Iterator[tuple[Reference, bool]]:
    """Yield each ConfigMap or Secret that an ``envFrom`` entry or a volume names, and whether it is optional."""
    for field, kind in (
        ("configMapRef", "ConfigMap"),
        ("secretRef", "Secret"),
        ("configMap", "ConfigMap"),
        ("secret", "Secret"),
    ):
        part = source.get(field)
        if part:
            yield Reference(kind=kind, name=part.get("name") or part.get("secretName", "")), bool(part.get("optional"))


def _keyed(value_from: Object) -> Iterator[tuple[Reference, str, bool]]:
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        part = value_from.get(field)
        if part:
            yield Reference(kind=kind, name=part.get("name", "")), part["key"], bool(part.get("optional"))


def _chosen(
    data: Mapping[str, bytes], part: Object, *, reference: Reference, is_optional: bool, mode: int
) -> dict[str, VolumeFile]:
    items: Sequence[Object] = (part.get("configMap") or part.get("secret") or {}).get("items", ())
    if not items:
        return {key: VolumeFile(content=content, mode=mode) for key, content in data.items()}
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not is_optional:
        raise InvalidValue(text=missing[0], expected=f"a key of {reference.kind} {reference.name}")
    return {
        item["path"]: VolumeFile(content=data[item["key"]], mode=item.get("mode") or mode)
        for item in items
        if item["key"] in data
    }


def _from(facts: PodFacts, container: Object, variable: Object, *, sources: Sources) -> dict[str, str]:
    value_from = variable["valueFrom"]
    for reference, key, is_optional in _keyed(value_from):
        data = _data(sources, reference, is_optional=is_optional)
        if key in data:
            return {variable["name"]: data[key].decode(errors="replace")}
        if not is_optional:
            raise InvalidValue(text=key, expected=f"a key of {reference.kind} {reference.name}")
        return {}
    if value_from.get("resourceFieldRef"):
        selector = value_from["resourceFieldRef"]
        name = selector.get("containerName") or container.get("name", "")
        return {variable["name"]: facts.resource(selector, container=name)}
    return {variable["name"]: facts.field((value_from.get("fieldRef") or {}).get("fieldPath", ""))}


def _data(sources: Sources, reference: Reference, *, is_optional: bool) -> Mapping[str, bytes]:
    data = sources.get(reference)
    if data is None and not is_optional:
        raise InvalidValue(text=reference.name, expected=f"the name of a {reference.kind} that exists")
    return data or {}
