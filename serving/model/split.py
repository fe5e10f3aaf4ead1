"""A digest of how the traffic of one host is split.

An activator answers ``K-Network-Probe: probe`` with it, as the ingresses of Knative answer with ``K-Network-Hash``: after a change
of traffic a client sees when it is in force, without learning the names of revisions.
"""

import hashlib
from collections.abc import Iterable

_LENGTH = 16


def split_digest(shares: Iterable[tuple[str, int]]) -> str:
    """16 hexadecimal digits of revisions and their percents, in any order; shares of one revision are one share."""
    sums: dict[str, int] = {}
    for revision, percent in shares:
        sums[revision] = sums.get(revision, 0) + percent
    text = ",".join(f"{revision}={percent}" for revision, percent in sorted(sums.items()) if percent)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
