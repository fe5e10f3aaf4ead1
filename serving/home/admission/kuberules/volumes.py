"""Validates a pod's volumes as a real API server. Follows pkg/apis/core/validation/validation.go. Pure."""

from collections.abc import Callable, Iterator
from typing import Any

from serving.home.admission.kuberules.containers import field_path_problems
from serving.home.admission.kuberules.findings import (
    DNS_LABEL,
    Json,
    duplicates,
    forbidden,
    invalid,
    is_label,
    is_path_below,
    items_of,
    required,
    text_problems,
    unsupported,
)
from serving.model.errors import Problem
from serving.model.quantity import parse_quantity

_MODE_MAX = 0o777
_TOKEN_LIFE_MIN_S = 600
_HOST_PATH_TYPES = (
    *("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"),
)


def volume_problems(volumes: list[Json], where: str) -> Iterator[Problem]:
    """Yield the problems of a pod's volumes."""
    for index, volume in enumerate(volumes):
        at = f"{where}[{index}]"
        yield from text_problems(volume.get("name"), f"{at}.name", DNS_LABEL, is_valid=is_label)
        yield from _source_problems(volume, at)
    yield from duplicates([volume.get("name") for volume in volumes], where, ".name")


def _source_problems(volume: Json, where: str) -> Iterator[Problem]:
    given = [key for key in (*_CHECKS, *(key for key in volume if key not in _CHECKS)) if key != "name"]
    given = [key for key in given if volume.get(key) is not None]
    for key in given[1:]:
        yield forbidden(f"{where}.{key}", "may not specify more than 1 volume type")
    for key in given[:1]:
        if key in _CHECKS:
            yield from _CHECKS[key](volume[key], f"{where}.{key}")


def _empty_dir(one: Json, where: str) -> Iterator[Problem]:
    if one.get("sizeLimit") is not None and parse_quantity(str(one["sizeLimit"])) < 0:
        yield forbidden(f"{where}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def _host_path(one: Json, where: str) -> Iterator[Problem]:
    path, kind = one.get("path") or "", one.get("type") or ""
    if not path:
        yield required(f"{where}.path", "a path")
    elif ".." in path.split("/"):
        yield invalid(f"{where}.path", path, "a path without '..'")
    if kind not in _HOST_PATH_TYPES:
        yield unsupported(f"{where}.type", kind, _HOST_PATH_TYPES)


def _config_map(one: Json, where: str) -> Iterator[Problem]:
    if not one.get("name"):
        yield required(f"{where}.name", "the name of a ConfigMap")
    yield from _file_problems(one, where)


def _secret(one: Json, where: str) -> Iterator[Problem]:
    if not one.get("secretName"):
        yield required(f"{where}.secretName", "the name of a Secret")
    yield from _file_problems(one, where)


def _file_problems(one: Json, where: str) -> Iterator[Problem]:
    yield from _mode_problems(one, where, "defaultMode")
    for index, item in enumerate(items_of(one, "items")):
        at = f"{where}.items[{index}]"
        if not item.get("key"):
            yield required(f"{at}.key", "a key of its data")
        yield from _path_problems(item, f"{at}.path")
        yield from _mode_problems(item, at, "mode")


def _path_problems(item: Json, where: str) -> Iterator[Problem]:
    path = item.get("path") or ""
    if not path:
        yield required(where, "a path")
    elif not is_path_below(path) or path.startswith(".."):
        yield invalid(where, path, "a relative path without '..'")


def _mode_problems(one: Json, where: str, field: str) -> Iterator[Problem]:
    mode = one.get(field)
    if mode is not None and not 0 <= mode <= _MODE_MAX:
        yield invalid(f"{where}.{field}", mode, "0 to 0777 (octal), which is 511")


def _claim(one: Json, where: str) -> Iterator[Problem]:
    if not one.get("claimName"):
        yield required(f"{where}.claimName", "the name of a claim")


def _downward(one: Json, where: str) -> Iterator[Problem]:
    yield from _mode_problems(one, where, "defaultMode")
    for item in items_of(one, "items"):
        yield from _path_problems(item, f"{where}.path")
        if item.get("fieldRef") is not None:
            yield from field_path_problems(item["fieldRef"], f"{where}.fieldRef")
        elif item.get("resourceFieldRef") is None:
            yield required(where, "a fieldRef or a resourceFieldRef in each item")


def _nfs(one: Json, where: str) -> Iterator[Problem]:
    if not one.get("server"):
        yield required(f"{where}.server", "the name of a server")
    if not one.get("path"):
        yield required(f"{where}.path", "an absolute path")
    elif not one["path"].startswith("/"):
        yield invalid(f"{where}.path", one["path"], "an absolute path")


def _projected(one: Json, where: str) -> Iterator[Problem]:
    yield from _mode_problems(one, where, "defaultMode")
    for index, source in enumerate(items_of(one, "sources")):
        at = f"{where}.sources[{index}]"
        given = [key for key, value in source.items() if value is not None]
        if len(given) > 1:
            yield forbidden(at, "may not specify more than 1 volume type per source")
        for key in given[:1]:
            if key in {"configMap", "secret"}:
                if not source[key].get("name"):
                    yield required(f"{at}.{key}.name", "its name")
                yield from _file_problems(source[key], f"{at}.{key}")
            elif key == "downwardAPI":
                yield from _downward(source[key], f"{at}.{key}")
            elif key == "serviceAccountToken":
                yield from _token(source[key], f"{at}.{key}", where)


def _token(one: Json, where: str, volume: str) -> Iterator[Problem]:
    life_s = one.get("expirationSeconds")
    if life_s is not None and life_s < _TOKEN_LIFE_MIN_S:
        yield invalid(f"{where}.expirationSeconds", life_s, f"at least {_TOKEN_LIFE_MIN_S} s")
    # A kube-apiserver names the field so.
    yield from _path_problems(one, f"{volume}.path")


# In the order in which a kube-apiserver looks at them: it is the first that a volume may have.
_CHECKS: dict[str, Callable[[Any, str], Iterator[Problem]]] = {
    "emptyDir": _empty_dir,
    "hostPath": _host_path,
    "secret": _secret,
    "nfs": _nfs,
    "persistentVolumeClaim": _claim,
    "downwardAPI": _downward,
    "configMap": _config_map,
    "projected": _projected,
}
