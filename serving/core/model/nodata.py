"""The value for missing input of a decision.

Examples are a window without points, a pod with unknown use, and a cluster that does not respond. A decision passes the
value on; it is neither 0 nor an exception. So an empty window never reaches a division.
"""

import msgspec


class NoData(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The absence of a result; ``missing`` names the missing input, such as "no point in the stable window"."""

    missing: str
