"""Shared parts of the rules for Kubernetes' own kinds: problem texts, name syntax, quantities.

Follows k8s.io/apimachinery, pkg/util/validation and pkg/util/validation/field. Pure.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from serving.model.errors import InvalidValue, Problem
from serving.model.quantity import parse_quantity

Json = dict[str, Any]
PORT_MAX = 65535
DNS_LABEL = "a DNS label: lower case letters, digits and '-', at most 63 characters"
DNS_SUBDOMAIN = "a DNS subdomain: lower case letters, digits, '-' and '.', at most 253 characters"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_SUBDOMAIN_LENGTH_MAX = 253
_QUALIFIED_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}\Z")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?\Z")

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_OPERATORS_EXPECTED = "In, NotIn, Exists or DoesNotExist"
_NODE_OPERATORS = (*_OPERATORS, "Gt", "Lt")
_NODE_OPERATORS_EXPECTED = f"one of {', '.join(_NODE_OPERATORS)}"


def required(where: str, expected: str = "a value") -> Problem:
    """The problem of a missing or empty field."""
    return Problem(where=where, what="Required value", expected=expected)


def invalid(where: str, value: object, expected: str) -> Problem:
    """The problem of a value that the field does not allow."""
    shown = f'"{value}"' if isinstance(value, str) else value
    return Problem(where=where, what=f"Invalid value: {shown}: must be {expected}", expected=expected)


def unsupported(where: str, value: object, choices: Collection[str]) -> Problem:
    """The problem of a value that is none of the field's choices."""
    supported = ", ".join(f'"{one}"' for one in choices)
    return Problem(
        where=where, what=f'Unsupported value: "{value}": supported values: {supported}', expected=f"one of {supported}"
    )


def forbidden(where: str, why: str) -> Problem:
    """The problem of a field that may not be set here."""
    return Problem(where=where, what=f"Forbidden: {why}", expected="nothing")


def duplicate(where: str, value: object) -> Problem:
    """The problem of a value that an earlier element has."""
    return Problem(where=where, what=f'Duplicate value: "{value}"', expected="a value of its own")


def not_found(where: str, value: object, expected: str) -> Problem:
    """The problem of a name that refers to nothing."""
    return Problem(where=where, what=f'Not found: "{value}"', expected=expected)


def chosen(one: Json, field: str, where: str, *, choices: Sequence[str]) -> Iterator[Problem]:
    """The problem of a value outside a field's choices; an empty value gets the default."""
    if (value := one.get(field)) and value not in choices:
        yield unsupported(f"{where}.{field}", value, choices)


def text_problems(value: object, where: str, expected: str, *, is_valid: Callable[[str], bool]) -> Iterator[Problem]:
    """The problem of a text that is missing, or not as expected."""
    if not value:
        yield required(where, expected)
    elif not is_valid(str(value)):
        yield invalid(where, value, expected)


def expression_problems(expressions: Sequence[Json], where: str, *, is_of_node: bool = False) -> Iterator[Problem]:
    """The problems of the expressions of a selector of labels; those of a node may compare numbers too."""
    key_expected = "the key of a node's label" if is_of_node else "the key of a label"
    for index, one in enumerate(expressions):
        at, operator, values = f"{where}[{index}]", one.get("operator"), items_of(one, "values")
        if operator in {"In", "NotIn"} and not values:
            yield required(f"{at}.values", f"values for the operator {operator}")
        elif operator in {"Exists", "DoesNotExist"} and values:
            yield forbidden(f"{at}.values", f"may not be specified when `operator` is '{operator}'")
        elif is_of_node and operator in {"Gt", "Lt"} and len(values) != 1:
            yield required(f"{at}.values", f"one value for the operator {operator}")
        elif operator not in (_NODE_OPERATORS if is_of_node else _OPERATORS):
            yield invalid(f"{at}.operator", operator, _NODE_OPERATORS_EXPECTED if is_of_node else _OPERATORS_EXPECTED)
        if not is_qualified(one.get("key") or ""):
            yield invalid(f"{at}.key", one.get("key"), key_expected)


def at_least(one: Json, field: str, where: str, *, least: int) -> Iterator[Problem]:
    """The problem of a number below its minimum."""
    value = one.get(field)
    if value is not None and value < least:
        yield invalid(f"{where}.{field}", value, f"greater than or equal to {least}")


def duplicates(values: Sequence[object], where: str, field: str = "") -> Iterator[Problem]:
    """A problem for each repeated value; empty ones are skipped."""
    seen: set[object] = set()
    for index, value in enumerate(values):
        if value and value in seen:
            yield duplicate(f"{where}[{index}]{field}", value)
        seen.add(value)


def items_of(one: Mapping[str, Any], field: str) -> list[Any]:
    """A list; [] if it is absent or null."""
    return one.get(field) or []


def map_of(one: Mapping[str, Any], field: str) -> Json:
    """An object; {} if it is absent or null."""
    return one.get(field) or {}


def is_label(text: str) -> bool:
    """Whether a text is a DNS label."""
    return bool(_LABEL.match(text))


def is_subdomain(text: str) -> bool:
    """Whether a text is a DNS subdomain."""
    return len(text) <= _SUBDOMAIN_LENGTH_MAX and bool(_SUBDOMAIN.match(text))


def is_qualified(text: str) -> bool:
    """Whether a text is a name such as "example.com/name", the key of a label."""
    prefix, slash, name = text.rpartition("/")
    return bool(_QUALIFIED_NAME.match(name)) and (not slash or is_subdomain(prefix))


def is_label_value(text: str) -> bool:
    """Whether a text is a label's value."""
    return bool(_LABEL_VALUE.match(text))


def is_config_key(text: str) -> bool:
    """Whether a text is a key of a ConfigMap or Secret."""
    return bool(_CONFIG_KEY.match(text)) and text not in {".", ".."} and not text.startswith("..")


def is_port_name(text: str) -> bool:
    """Whether a text names a port, as IANA names services."""
    return bool(_PORT_NAME.match(text)) and "--" not in text


def is_path_below(text: str) -> bool:
    """Whether a path is relative and never leaves its folder."""
    return not text.startswith("/") and ".." not in text.split("/")


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def label_problems(labels: Mapping[str, str], where: str) -> Iterator[Problem]:
    """A problem for each pair that is no label."""
    for key, value in labels.items():
        if not is_qualified(key):
            yield invalid(where, key, "a name of letters, digits, '-', '_' and '.', with a domain before it or none")
        if not is_label_value(value or ""):
            yield invalid(where, value, "at most 63 letters, digits, '-', '_' and '.'")


def port_problems(port: object, where: str) -> Iterator[Problem]:
    """The problem of a port, given as a number or by name."""
    if isinstance(port, str):
        if not is_port_name(port):
            yield invalid(where, port, "the name of a port: at most 15 lower case letters, digits and '-'")
    elif not isinstance(port, int) or not 0 < port <= PORT_MAX:
        yield invalid(where, port or 0, f"a port, 1 to {PORT_MAX}")


def is_quantity(value: object) -> bool:
    """Whether a value is a quantity such as 500m or 1Gi."""
    try:
        parse_quantity(str(value))
    except InvalidValue:
        return False
    return True
