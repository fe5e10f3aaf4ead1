"""How the requests for one host are shared out, as a few characters that two who know it can compare.

An activator says it in answer to ``K-Network-Probe: probe``, as the ingresses of Knative say theirs in ``K-Network-Hash``: who
has changed traffic sees when it is in force, and the names of revisions stay private.
"""

import hashlib
from collections.abc import Iterable

__all__ = ["split_digest"]

_LENGTH = 16


def split_digest(shares: Iterable[tuple[str, int]]) -> str:
    """16 hexadecimal digits of revisions and their percents, in any order; shares of one revision are one share."""
    sums: dict[str, int] = {}
    for revision, percent in shares:
        sums[revision] = sums.get(revision, 0) + percent
    told = ",".join(f"{revision}={percent}" for revision, percent in sorted(sums.items()) if percent)
    return hashlib.sha256(told.encode()).hexdigest()[:_LENGTH]
