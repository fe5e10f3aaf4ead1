"""The value for missing input of a decision.

A window without points, a pod whose use is unknown, a cluster that does not answer: each is a fact that a decision
carries on, not a zero and not an exception. An empty window therefore never reaches a division.
"""

import msgspec


class NoData(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The absence of a result; ``missing`` names the missing input, such as "no point in the stable window"."""

    missing: str
