"""Problems in a kube-apiserver's words, and the formats of texts and numbers in Kubernetes' own kinds.

Follows k8s.io/apimachinery, pkg/util/validation and pkg/util/validation/field. Pure.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue, Problem
from serving.core.model.objects import is_dns_label
from serving.core.model.ports import PORT_MAX
from serving.core.model.quantity import parse_quantity

Json = dict[str, Any]
_SUBDOMAIN_LENGTH_MAX = 253
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?\Z")
_SHARE = re.compile(r"(\d\d?|100)%\Z")
_MANY = frozenset({"metadata.labels", "metadata.annotations"})
_FIELDS = _MANY | {
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
}
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['[^']+'\]\Z")


class Format(msgspec.Struct, frozen=True):
    """A format of a value: ``expected`` describes it in errors, and ``fits`` tests a value."""

    expected: str
    fits: Callable[[Any], bool]


def required(where: str, expected: str = "a value") -> Problem:
    """The problem of a missing or empty field."""
    return Problem(where=where, what="Required value", expected=expected)


def invalid(where: str, value: object, expected: str) -> Problem:
    """The problem of an invalid value."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return Problem(where=where, what=f"Invalid value: {shown}: must be {expected}", expected=expected)


def unsupported(where: str, value: object, choices: Collection[str]) -> Problem:
    """The problem of a value outside the choices of its field."""
    supported = ", ".join(f'"{choice}"' for choice in choices)
    what = f'Unsupported value: "{value}": supported values: {supported}'
    return Problem(where=where, what=what, expected=f"one of {supported}")


def forbidden(where: str, why: str) -> Problem:
    """The problem of a field that must not be set."""
    return Problem(where=where, what=f"Forbidden: {why}", expected="nothing")


def duplicate(where: str, value: object) -> Problem:
    """The problem of a repeated value."""
    return Problem(where=where, what=f'Duplicate value: "{value}"', expected="a unique value")


def items_of(whole: Mapping[str, Any], field: str) -> list[Any]:
    """The list in a field of an object; [] if the field is absent or null."""
    return whole.get(field) or []


def map_of(whole: Mapping[str, Any], field: str) -> Json:
    """The object in a field of an object; {} if the field is absent or null."""
    return whole.get(field) or {}


def _pattern(expected: str, pattern: str) -> Format:
    compiled = re.compile(pattern)
    return Format(expected, lambda text: bool(compiled.fullmatch(text)))


def _is_subdomain(text: str) -> bool:
    return len(text) <= _SUBDOMAIN_LENGTH_MAX and bool(_SUBDOMAIN.match(text))


def _is_qualified(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    return bool(_NAME.match(name)) and (not slash or _is_subdomain(prefix))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_port(port: object) -> bool:
    return bool(_PORT_NAME.match(port)) if isinstance(port, str) else isinstance(port, int) and 0 < port <= PORT_MAX


def is_quantity(value: object) -> bool:
    """Whether a value is a quantity such as 500m or 1Gi."""
    try:
        parse_quantity(str(value))
    except InvalidValue:
        return False
    return True


def _is_below(text: str) -> bool:
    parts = text.split("/")
    fits = all(len(part.encode("utf-8", "replace")) <= _NAME_BYTES_MAX for part in parts)
    return bool(parts[0] or not text) and ".." not in parts and "\0" not in text and fits


# A file name has at most 255 bytes (limits.h, NAME_MAX).
_NAME_BYTES_MAX = 255
_BELOW = Format("a relative path without '..', with names of at most 255 bytes", _is_below)

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "label": Format(
            "a DNS label: lower case letters, digits and '-', at most 63 characters",
            is_dns_label,
        ),
        "subdomain": Format(
            "a DNS subdomain: lower case letters, digits, '-' and '.', at most 253 characters", _is_subdomain
        ),
        "search": Format("a domain", lambda text: _is_subdomain(text.removesuffix(".").replace("_", "a"))),
        "qualified": Format(
            "a name of letters, digits, '-', '_' and '.', with a domain before it or none", _is_qualified
        ),
        "label-value": Format(
            "at most 63 letters, digits, '-', '_' and '.'", lambda text: not text or bool(_NAME.match(text))
        ),
        "config-key": _pattern("at most 253 letters, digits, '-', '_' and '.'", r"(?!\.\.|\.$)[-._a-zA-Z0-9]{1,253}"),
        "port-name": Format(
            "at most 15 lower case letters, digits and '-', with a letter among them",
            lambda text: bool(_PORT_NAME.match(text)),
        ),
        "port": Format(
            f"a port: 1 to {PORT_MAX}, or a name of at most 15 lower case letters, digits and '-'", _is_port
        ),
        "address": Format("an IP address", _is_address),
        "address-range": Format("an IP address", lambda text: _is_address(text.partition("/")[0])),
        "family": Format("IPv4 or IPv6", ("IPv4", "IPv6").__contains__),
        "variable": _pattern("printable ASCII characters without '='", r"[ -<>-~]+"),
        "header": _pattern("the name of an HTTP header", r"[-!#$%&'*+.^_`|~0-9A-Za-z]+"),
        "sysctl": _pattern(
            "the name of a sysctl", r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*"
        ),
        "resource-field": _pattern(
            "a resource such as limits.cpu", r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)"
        ),
        "field-path": Format(
            "a field such as metadata.name", lambda path: path in _FIELDS or bool(_KEYED_FIELD.match(path))
        ),
        "env-field-path": Format("a field with one value, such as metadata.name", lambda path: path not in _MANY),
        "path-below": _BELOW,
        "path-without-dots": Format("a path without '..'", lambda path: ".." not in path.split("/")),
        "absolute-path": Format("an absolute path", lambda path: path.startswith("/")),
        "trimmed": Format("a name without blanks around it", lambda text: text == text.strip()),
        "natural": Format("0 or more", lambda number: number >= 0),
        "amount": Format("a quantity of 0 or more", lambda value: parse_quantity(str(value)) >= 0),
        "share": Format(
            "0 or more, or a percentage such as 25%",
            lambda value: bool(_SHARE.match(value)) if isinstance(value, str) else value >= 0,
        ),
    }
)
