"""How full a node group is: what its pods ask for against what its untainted nodes offer.

Input: two amounts and the number of nodes; output: percentages, or the fact that there is nothing to divide by. It
stays in percent, unlike the rest of the project, because the thresholds are whole percentages and Escalator's order
of operations decides the ties. Source: atlassian/escalator 043bb1b, pkg/controller/util.go, docs/calculations.md.
"""

import msgspec

from serving.model.nodata import NoData
from serving.nodegroup.records import Amount


class Utilisation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Requests as a percentage of capacity; may exceed 100."""

    cpu_percent: float
    memory_percent: float

    @property
    def percent(self) -> float:
        """The larger of the two, which decides."""
        return max(self.cpu_percent, self.memory_percent)


class FromZero(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """There are requests and no untainted node: fuller than any threshold, by an unknown factor.

    Escalator writes the largest float in both percentages for this.
    """


Usage = Utilisation | FromZero | NoData


def utilisation(request: Amount, capacity: Amount, *, untainted_count: int) -> Usage:
    """Requests over capacity, each resource for itself.

    5000 m asked of 2000 m is 250 %, 1000 MB of 8000 MB is 12.5 %: cpu decides. An empty group without requests
    of is at 0 %. Requests without an untainted node are ``FromZero``; untainted nodes that offer no cpu or no memory
    are ``NoData``, for which Escalator's error says "cannot divide by zero in percent calculation".
    """
    nothing = Amount()
    if request == capacity == nothing and untainted_count == 0:
        return Utilisation(cpu_percent=0.0, memory_percent=0.0)
    if capacity.cpu_m == 0 or capacity.memory_bytes == 0:
        return FromZero() if untainted_count == 0 else NoData(missing="cpu or memory that untainted nodes offer")
    return Utilisation(
        cpu_percent=request.cpu_m / capacity.cpu_m * 100,
        memory_percent=request.memory_bytes / capacity.memory_bytes * 100,
    )
