"""Ranks a revision's ready pods for removal.

Input: a pod's load, its dormancy, and the savings of its prompt cache. Output: a rank; pods with lower ranks are
removed first. The autoscaler marks pods by this rank, and the simulator removes them by it.
"""

import math


def removal_rank(*, heat: float, in_flight: float, dormant_since_s: float = math.inf) -> tuple[float, float, float]:
    """The rank of a pod: least saved by the prompt cache, then fewest requests in flight, then dormant for longest.

    ``heat`` is 0 unless prompts choose pods. ``dormant_since_s`` is infinite for a pod that is not dormant. Example: an
    idle pod whose cache saved 500 bytes stays longer than a pod with 3 requests whose cache saved nothing.
    """
    return heat, in_flight, dormant_since_s
