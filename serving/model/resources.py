"""Amounts of cpu and memory, as requests, limits and capacities use them."""

import msgspec

__all__ = ["Resources"]


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """An amount of cpu in millicores and of memory in bytes. None means that the key is absent, which is not 0."""

    cpu_m: int | None = None
    memory_bytes: int | None = None
