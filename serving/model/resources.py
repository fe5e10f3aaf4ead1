"""Amounts of cpu and memory, as requests, limits and capacities use them."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from serving.model.errors import InvalidValue
from serving.model.quantity import parse_bytes, parse_millicores

_Amount = TypeVar("_Amount")


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """An amount of cpu in millicores and of memory in bytes. None means that the key is absent, which is not 0."""

    cpu_m: int | None = None
    memory_bytes: int | None = None


def resources_of(written: Mapping[str, Any] | None) -> Resources:
    """What is written as ``{"cpu": "250m", "memory": "64Mi"}``; an amount that cannot be read counts as unset."""
    amounts = written or {}
    cpu, memory = amounts.get("cpu"), amounts.get("memory")
    return Resources(
        cpu_m=None if cpu is None else _amount(str(cpu), parse_millicores),
        memory_bytes=None if memory is None else _amount(str(memory), parse_bytes),
    )


# A thousand pods of one revision request the same.
@functools.lru_cache(maxsize=4096)
def _amount(written: str, parse: Callable[[str], int]) -> int | None:
    try:
        return parse(written)
    except InvalidValue:
        # Admission has refused it.
        return None


def pod_peak(
    containers: Iterable[_Amount],
    init_containers: Iterable[tuple[_Amount, bool]],
    *,
    none: _Amount,
    add: Callable[[_Amount, _Amount], _Amount],
    larger: Callable[[_Amount, _Amount], _Amount],
) -> _Amount:
    """What a pod needs at its most, without its overhead: Kubernetes' rule (KEP-753), for amounts of any type.

    Each init container comes with whether it is a sidecar (``restartPolicy: Always``), which goes on beside all that follow.
    Containers of 1 and 2 cpu after a sidecar of 1 and an init container of 4: max(1 + 1 + 2, 1 + 4) = 5.
    """
    largest = beside = none
    for amount, is_sidecar in init_containers:
        needed = add(beside, amount)
        largest = larger(largest, needed)
        beside = needed if is_sidecar else beside
    for amount in containers:
        beside = add(beside, amount)
    return larger(largest, beside)
