"""Parses and formats durations, numbers, percentages, cpu and memory quantities.

The project computes in seconds, ratios, millicores and bytes. Texts such as "60s", "70" percent, "500m" and "1Gi" are
only in settings and manifests. Each ``parse_*`` raises ``InvalidValue``. Each ``format_*`` writes the shortest text
that parses to the same value.

Sources: durations as Go's ``time.ParseDuration``, quantities as Kubernetes' ``resource.Quantity`` (both rounded up to
the unit in use, as in Kubernetes), percentages as Knative's config-autoscaler.
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

import msgspec

from serving.core.model.errors import InvalidValue

INT32_MAX = 2**31 - 1
"""The largest value of a Kubernetes field of type int32, such as a number of replicas."""

_SECONDS_PER_UNIT = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
# Bounds the length of numbers: long fractions are slow, and Python rejects numbers above 4,300 digits.
_QUANTITY_LENGTH_MAX = 100
_QUANTITY = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))?", re.ASCII
)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_COUNT = re.compile(r"[+-]?\d{1,18}", re.ASCII)
DURATION_FORM = rf"[+-]?(0|({_DURATION_PART.pattern})+)"
"""The form of a duration, as a regular expression that is also valid in RE2. Other forms follow."""
NUMBER_FORM = _DECIMAL.pattern
COUNT_FORM = _COUNT.pattern
QUANTITY_FORM = _QUANTITY.pattern
_SCALE: dict[str | None, Fraction] = {
    None: Fraction(1),
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate(("m", "u", "n"), start=1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
_FLAGS = {"true": True, "false": False}

_Amount = TypeVar("_Amount")

MEMORY_ASSUMED_BYTES = 200 * 1024 * 1024
"""Assumed memory of a container that requests none, for sums over pods. Source: Kubernetes' scheduler."""

_NANOS = 10**9
_DECIMAL_UNITS = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BINARY_MIN = 1024


def parse_duration_s(text: str) -> float:
    """Seconds of a Go duration such as "60s", "1m30s", "1.5h" or "0"."""
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if body == "0":
        return 0.0
    total, end = Fraction(0), 0
    while part := _DURATION_PART.match(body, end):
        total += Fraction(part[1]) * _SECONDS_PER_UNIT[part[2]]
        end = part.end()
    if not body or end != len(body):
        raise InvalidValue(text=text, expected='a duration such as "60s", "1m30s" or "500ms"')
    return float(sign * total)


def format_duration_s(duration_s: float) -> str:
    """The shortest duration in one unit: 60.0 is "60s", 0.5 is "500ms", 3600.0 is "1h"."""
    if duration_s and duration_s % 3600 == 0:
        return f"{format_number(duration_s / 3600)}h"
    if duration_s == int(duration_s):
        return f"{format_number(duration_s)}s"
    return f"{format_number(round(duration_s * 1000, 6))}ms"


def _is_finite_decimal(text: str) -> bool:
    return bool(_DECIMAL.fullmatch(text)) and math.isfinite(float(text))


def parse_number(text: str) -> float:
    """A finite decimal number, as in "1.5" or "2e3"."""
    if not _is_finite_decimal(text):
        raise InvalidValue(text=text, expected='a number such as "1.5"')
    return float(text)


def format_number(number: float) -> str:
    """The shortest text of a number: 10.0 is "10", 0.5 is "0.5"."""
    return str(int(number)) if number == int(number) else repr(number)


def parse_count(text: str) -> int:
    """A whole number, as in "100" or "-1"."""
    if not _COUNT.fullmatch(text):
        raise InvalidValue(text=text, expected='a whole number such as "100"')
    return int(text)


def parse_flag(text: str) -> bool:
    """Parse "true" or "false", in any case."""
    flag = _FLAGS.get(text.lower())
    if flag is None:
        raise InvalidValue(text=text, expected='"true" or "false"')
    return flag


def parse_percent(text: str) -> float:
    """Ratio of a percentage: "200" is 2.0."""
    if not _is_finite_decimal(text):
        raise InvalidValue(text=text, expected='a percentage such as "70"')
    return float(Fraction(text) / 100)


def parse_percent_or_fraction(text: str) -> float:
    """Parse a percentage as Knative does: "70" and "0.7" are both 0.7; values up to 1 are fractions.

    Used only for keys that Knative reads in this way.
    """
    ratio = parse_percent(text)
    return float(text) if ratio <= 0.01 else ratio


def format_percent(ratio: float) -> str:
    """Percentage of a ratio: 0.7 is "70"."""
    return format_number(float(Fraction(repr(ratio)) * 100))


def parse_quantity(text: str, expected: str = 'a quantity such as "500m", "2" or "1Gi"') -> Fraction:
    """The exact value of a quantity of Kubernetes: "500m" is 1/2, "1Ki" is 1024."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _QUANTITY_LENGTH_MAX else None
    if not match:
        raise InvalidValue(text=text[:_QUANTITY_LENGTH_MAX], expected=expected)
    return Fraction(f"{match[1]}e{match[2] or 0}") * _SCALE[match[3]]


def parse_millicores(text: str) -> int:
    """Thousandths of a core of a Kubernetes cpu quantity, rounded up: "0.5" and "500m" are 500."""
    return math.ceil(parse_quantity(text, 'a cpu quantity such as "500m" or "2"') * 1000)


def parse_bytes(text: str) -> int:
    """Bytes of a Kubernetes memory quantity, rounded up: "1Gi" is 1073741824, "1G" is 1000000000."""
    return math.ceil(parse_quantity(text, 'a memory quantity such as "128Mi" or "1G"'))


def format_bytes(byte_count: int) -> str:
    """Kubernetes memory quantity in the largest binary unit that is exact: 1073741824 is "1Gi"."""
    for power, suffix in enumerate(("Ei", "Pi", "Ti", "Gi", "Mi", "Ki")):
        unit = 1024 ** (6 - power)
        if byte_count and byte_count % unit == 0:
            return f"{byte_count // unit}{suffix}"
    return str(byte_count)


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Cpu in millicores and memory in bytes. None means that the key is absent, unlike 0."""

    cpu_m: int | None = None
    memory_bytes: int | None = None


def resources_of(written: Mapping[str, Any] | None) -> Resources:
    """Parse ``{"cpu": "250m", "memory": "64Mi"}``; invalid amounts count as unset."""
    amounts = written or {}
    cpu, memory = amounts.get("cpu"), amounts.get("memory")
    return Resources(
        cpu_m=None if cpu is None else _amount(str(cpu), parse_millicores),
        memory_bytes=None if memory is None else _amount(str(memory), parse_bytes),
    )


# Cached: all pods of a revision request the same amounts.
@functools.lru_cache(maxsize=4096)
def _amount(written: str, parse: Callable[[str], int]) -> int | None:
    try:
        return parse(written)
    except InvalidValue:
        # Admission has already rejected an invalid quantity.
        return None


def pod_peak(
    containers: Iterable[_Amount],
    init_containers: Iterable[tuple[_Amount, bool]],
    *,
    none: _Amount,
    add: Callable[[_Amount, _Amount], _Amount],
    larger: Callable[[_Amount, _Amount], _Amount],
) -> _Amount:
    """Peak demand of a pod without its overhead, by Kubernetes' rule (KEP-753), for amounts of any type.

    The flag of an init container marks a sidecar (``restartPolicy: Always``), which keeps running. Example: a sidecar
    uses 1 cpu, and the next init container 4. The containers use 1 and 2. The start needs 1 + 4 = 5, and the containers
    with the sidecar need 1 + 1 + 2 = 4: the peak is 5.
    """
    largest = beside = none
    for amount, is_sidecar in init_containers:
        needed = add(beside, amount)
        largest = larger(largest, needed)
        beside = needed if is_sidecar else beside
    for amount in containers:
        beside = add(beside, amount)
    return larger(largest, beside)


class ExactAmount(msgspec.Struct, frozen=True):
    """An exact quantity. ``nanos`` is the value times 10^9; ``is_binary``: the text has a unit such as Mi, not M."""

    nanos: int
    is_binary: bool = False

    def __add__(self, other: "ExactAmount") -> "ExactAmount":
        """The sum, in the format of the first operand that is not zero."""
        return ExactAmount(self.nanos + other.nanos, self.is_binary if self.nanos else other.is_binary)

    def __str__(self) -> str:
        return written_amount(self)


Amounts = Mapping[str, ExactAmount]
"""Amounts by resource name, such as "cpu" and "requests.memory"."""


def amounts_of(written: Mapping[str, Any] | None) -> dict[str, ExactAmount]:
    """Parse a map of quantities from a manifest. Raises ``InvalidValue``."""
    amounts = {}
    for name, text in (written or {}).items():
        value = parse_quantity(str(text)) * _NANOS
        amounts[name] = ExactAmount(math.ceil(value), str(text).endswith("i"))
    return amounts


def total(parts: Iterable[Amounts]) -> dict[str, ExactAmount]:
    """The sum by resource name: {cpu: 500m} and {cpu: 1, pods: 1} are {cpu: 1500m, pods: 1}."""
    amounts: dict[str, ExactAmount] = {}
    for part in parts:
        for name, amount in part.items():
            before = amounts.get(name)
            amounts[name] = amount if before is None else before + amount
    return amounts


def written_amount(amount: ExactAmount) -> str:
    """The shortest text of an amount as a whole number and a unit: 2000m is "2", 1500m stays, 2048Mi is "2Gi"."""
    value, nanos = abs(amount.nanos), abs(amount.nanos) % _NANOS
    sign = "-" if amount.nanos < 0 else ""
    if amount.is_binary and not nanos and value >= _BINARY_MIN * _NANOS:
        return sign + _shortest(value // _NANOS, 1024, _BINARY)
    return sign + _shortest(value, 1000, _DECIMAL_UNITS) if value else "0"


def _shortest(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while number % base == 0 and step + 1 < len(suffixes):
        number, step = number // base, step + 1
    return f"{number}{suffixes[step]}"
