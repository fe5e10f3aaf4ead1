"""Reads manifests before the command sends anything: files and folders of YAML or JSON, several documents per file.

Input: paths, "-" for standard input; output: the documents with their positions, or ``SettingsError`` with every
problem in any document, so that no half of a broken folder is applied. An unsupported kind is no problem: files for a
cluster may contain such objects, and the other documents are read.
"""

import difflib
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.objects import Object
from serving.core.settings.yamltext import JsonTypesLoader
from serving.net.aio.inputfile import read_input_text
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    KINDS,
    LIMIT_RANGE,
    NAMESPACE,
    RESOURCE_QUOTA,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
    kind_of,
)

_SUFFIXES = {".yaml", ".yml", ".json"}
# Manifests nest about ten levels; a hundred levels are an attack.
_DEPTH_MAX = 100
# Dependencies are created first, regardless of the order of the files.
_FIRST = {NAMESPACE: 0, **dict.fromkeys((CONFIG_MAP, SECRET, SERVICE_ACCOUNT, LIMIT_RANGE, RESOURCE_QUOTA), 1)}
# Names and versions above this similarity are misspelt: "Deploymnet", "app/v1". PersistentVolume and
# PersistentVolumeClaim: 0.86.
_NEAR = 0.88
# Kinds of other platforms, and their replacements.
_CLOUD_RUN_GROUP = "run.googleapis.com"
_INSTEAD = {
    (_CLOUD_RUN_GROUP, "Job"): "a Service: jobs of Cloud Run do not run here",
    ("kustomize.config.k8s.io", "Kustomization"): "the output of `kubectl kustomize FOLDER`",
    (_CLOUD_RUN_GROUP, "WorkerPool"): "a Service with min-scale 1: worker pools of Cloud Run do not run here",
}
# Kubernetes moved its kinds from this group to others.
_FORMER_GROUP = "extensions"
_YAML_TAG = "tag:yaml.org,2002:"
_JSON_TAGS = frozenset({"null", "bool", "int", "float", "str", "seq", "map", "merge", "value"})
_EXPECTED = "a manifest: apiVersion, kind and metadata.name"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One document: kind, body and position in its file."""

    kind: Kind
    body: Object
    where: str

    @property
    def name(self) -> str:
        """The name of the object."""
        return str(self.body["metadata"]["name"])


class ManifestFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of files. ``foreign`` are problems about documents of unsupported kinds."""

    manifests: list[Manifest]
    foreign: list[Problem]


def read_manifests(paths: Sequence[str]) -> ManifestFiles:
    """All documents, dependencies first. Raises ``SettingsError`` with every problem."""
    manifests: list[Manifest] = []
    foreign: list[Problem] = []
    problems: list[Problem] = []
    for path in paths:
        for name, text in _texts(path, problems):
            for where, document in _documents(name, text, problems):
                for where_below, body in _bodies(where, document, problems):
                    problem = _foreign(where_below, body)
                    if problem is not None:
                        foreign.append(problem)
                    else:
                        manifests += _manifest(where_below, body, problems)
    if problems:
        raise SettingsError(problems)
    return ManifestFiles(
        manifests=sorted(manifests, key=lambda manifest: _FIRST.get(manifest.kind, 2)), foreign=foreign
    )


class ManifestLoader(JsonTypesLoader):
    """Rejects duplicate keys, and values that JSON does not have."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - the library's own
        """Build a value. Raises ``YAMLError`` for bytes, sets, times, infinity and the like."""
        value = super().construct_object(node, deep)
        name = node.tag.removeprefix(_YAML_TAG)
        is_infinite = isinstance(value, float) and not math.isfinite(value)
        if is_infinite or (node.tag.startswith(_YAML_TAG) and name not in _JSON_TAGS):
            problem = f"{_shown(node.value)} is not a JSON value"
            raise yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the library's own
        """Build a mapping.

        Raises ``YAMLError`` for a duplicate key: the last value would silently replace the first.
        """
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                problem = f"duplicate key {key.value!r}"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(str(key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _texts(path: str, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    if path == "-":
        yield "standard input", sys.stdin.read()
        return
    if path.startswith(("http://", "https://")):
        expected = "a file, a folder or -; fetch it with curl and pipe it in"
        problems.append(Problem(where=path, what="nothing is fetched from elsewhere", expected=expected))
        return
    place = Path(path)
    files = [place]
    if place.is_dir():
        files = sorted(file for file in place.iterdir() if file.suffix in _SUFFIXES and file.is_file())
        if not files:
            problems.append(Problem(where=path, what="no manifest in it", expected="files *.yaml, *.yml or *.json"))
    for file in files:
        try:
            yield str(file), read_input_text(file)
        except OSError as error:
            what = f"not readable: {error.strerror}"
            problems.append(Problem(where=str(file), what=what, expected="a file of YAML or JSON"))


def _documents(name: str, text: str, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    """Each document with its position. Empty documents are skipped; if all are empty, this is a problem."""
    is_empty = True
    try:
        check_depth(text)
        loader = ManifestLoader(text)
        while loader.check_node():
            node = loader.get_node()
            document = loader.construct_document(node)
            if document is not None:
                is_empty = False
                yield f"{name}:{node.start_mark.line + 1}", document
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        rendered = ", rendered as `helm template` does" if "{{" in text else ""
        problems.append(Problem(where=where, what=f"not YAML: {what}", expected=f"YAML or JSON{rendered}"))
    else:
        if is_empty:
            problems.append(Problem(where=name, what="it is empty", expected=_EXPECTED))


def check_depth(text: str) -> None:
    """Raise ``YAMLError`` for deep nesting, because the library builds nodes by recursion on the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=ManifestLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEPTH_MAX:
                raise yaml.MarkedYAMLError(problem="nested too deep", problem_mark=event.start_mark)  # type: ignore[arg-type] # the C library has marks of its own
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _bodies(where: str, document: Any, problems: list[Problem]) -> Iterator[tuple[str, Object]]:  # noqa: ANN401 - YAML
    """The objects of a document with their positions: the document itself, or the items of a List."""
    if not isinstance(document, dict):
        what = f"{_shown(document)} is not an object"
        problems.append(Problem(where=where, what=what, expected=_EXPECTED))
        return
    name = document.get("kind")
    if isinstance(name, str) and name.endswith("List"):
        if not isinstance(document.get("items"), list):
            what = f"{name}: items is {_shown(document.get('items'))}"
            problems.append(Problem(where=where, what=what, expected="a list of manifests"))
            return
        for number, item in enumerate(document["items"]):
            yield from _bodies(f"{where} items[{number}]", item, problems)
        return
    yield where, document


def _foreign(where: str, body: Object) -> Problem | None:
    """The problem of a document with an unknown kind; None for a known kind."""
    version, name = body.get("apiVersion"), body.get("kind")
    if not isinstance(version, str) or not isinstance(name, str) or kind_of(version, name) is not None:
        return None
    metadata = body.get("metadata")
    title = f"{name}/{metadata.get('name', '')}" if isinstance(metadata, dict) else name
    return Problem(
        where=where, what=f"{title}: {version} {name} is not served here", expected=_instead_of(version, name)
    )


def _instead_of(version: str, name: str) -> str:
    """What to use instead of an unknown kind, for the error message."""
    group = version.rpartition("/")[0]
    instead = _INSTEAD.get((group, name))
    if instead:
        return instead
    names = {kind.name: kind for kind in KINDS if group in (kind.group, _FORMER_GROUP)}
    versions = {kind.api_version: kind for kind in KINDS if kind.name == name}
    near = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
    near_version = difflib.get_close_matches(version, versions, n=1, cutoff=_NEAR)
    meant = names[near[0]] if near else versions[near_version[0]] if near_version else None
    if meant is not None:
        return f"apiVersion {meant.api_version}, kind {meant.name}"
    return "a kind of `kubectl api-resources`; a cluster may have it"


def _manifest(where: str, body: Object, problems: list[Problem]) -> Iterator[Manifest]:
    version, name = body.get("apiVersion"), body.get("kind")
    problem = _problem(version, name, body.get("metadata"), is_compose="services" in body)
    if problem:
        problems.append(Problem(where=where, what=problem[0], expected=problem[1]))
        return
    kind = kind_of(str(version), str(name))
    assert kind is not None
    yield Manifest(kind=kind, body=body, where=where)


def _problem(version: object, name: object, metadata: object, *, is_compose: bool) -> tuple[str, str] | None:
    """The problem in the head of a document, and the expected value; None if the head is valid."""
    if not isinstance(version, str) or not isinstance(name, str):
        missing = "apiVersion" if not isinstance(version, str) else "kind"
        instead = "; `serving convert FILE` makes them of a compose file" if is_compose else ""
        return f"{missing} is missing or not a text", f"{_EXPECTED}{instead}"
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        return "metadata.name is missing or not a text", "a name"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
