"""The limits of the memory store.

Nothing in the store grows with time: each limit here has its error, ``Invalid`` for an object, ``Gone`` for a watch,
``Unavailable`` for the journal.
"""

import msgspec


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much the store keeps and accepts."""

    object_bytes_max: int = 3 * 2**19
    """Largest object as JSON, in bytes. Range 1 and more. Default: etcd's request limit, 1.5 MiB."""

    history_count_max: int = 10_000
    """Changes of one kind that a watch can still start before. Range 0 and more. Default: a burst of 10,000 pods."""

    history_bytes_max: int = 16 * 2**20
    """The same in bytes of JSON. Range 0 and more. Default: 10,000 pods of 1.6 KiB."""

    history_age_s: float = 10.0
    """Age of a change in seconds at which the history drops it. Range 0 and more. Default: a list of 10,000 pods, on a machine
    under load, before its watch starts; a client that comes later lists again."""

    history_count_min: int = 100
    """The newest changes of one kind stay at any age. Range 0 and more. Default: that of a kube-apiserver's watch cache."""

    watch_count_max: int = 10_000
    """Changes that may wait in one watch for its reader; one more closes it with ``Gone``. Range 1 and more."""
