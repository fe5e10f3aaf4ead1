"""Exact amounts of any resource, written as a kube-apiserver writes them.

A ``Quantity`` of Kubernetes is a whole number of 10^-9 and a form, decimal ("500m") or binary ("1Gi"). A sum has the form of its
first part that is not zero. Follows k8s.io/apimachinery, pkg/api/resource/quantity.go.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from serving.model.quantity import parse_quantity

_NANOS = 10**9
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BINARY_MIN = 1024


class ExactAmount(msgspec.Struct, frozen=True):
    """``nanos`` is the value times 10^9: 1500m is 1,500,000,000."""

    nanos: int
    is_binary: bool = False

    def __add__(self, other: "ExactAmount") -> "ExactAmount":
        """The sum, in the form of the first part that is not zero."""
        return ExactAmount(self.nanos + other.nanos, self.is_binary if self.nanos else other.is_binary)

    def __str__(self) -> str:
        return written_amount(self)


Amounts = Mapping[str, ExactAmount]
"""Amounts by the names of their resources, such as "cpu" and "requests.memory"."""


def amounts_of(written: Mapping[str, Any] | None) -> dict[str, ExactAmount]:
    """Read a map of quantities from a manifest. Raises ``InvalidValue`` for an invalid one."""
    found = {}
    for name, text in (written or {}).items():
        value = parse_quantity(str(text)) * _NANOS
        found[name] = ExactAmount(math.ceil(value), str(text).endswith("i"))
    return found


def total(parts: Iterable[Amounts]) -> dict[str, ExactAmount]:
    """The sum by resource: {cpu: 500m} and {cpu: 1, pods: 1} are {cpu: 1500m, pods: 1}."""
    found: dict[str, ExactAmount] = {}
    for part in parts:
        for name, amount in part.items():
            before = found.get(name)
            found[name] = amount if before is None else before + amount
    return found


def written_amount(amount: ExactAmount) -> str:
    """The shortest text with a whole number: 2000m is "2", 1500m stays, 2048Mi is "2Gi"."""
    value, nanos = abs(amount.nanos), abs(amount.nanos) % _NANOS
    sign = "-" if amount.nanos < 0 else ""
    if amount.is_binary and not nanos and value >= _BINARY_MIN * _NANOS:
        return sign + _shortest(value // _NANOS, 1024, _BINARY)
    return sign + _shortest(value, 1000, _DECIMAL) if value else "0"


def _shortest(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while number % base == 0 and step + 1 < len(suffixes):
        number, step = number // base, step + 1
    return f"{number}{suffixes[step]}"
