"""How long a request may take from end to end; a daemon says so for each request, by its revision."""

import math

import msgspec

__all__ = ["NO_TIMEOUTS", "Timeouts"]


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a request may take, in seconds; ``math.inf`` is no limit. What expires gives 504, or cuts the answer.

    ``total_s`` runs from the request's head to the end of the answer, waiting included; ``answer_start_s`` from the head
    to the first byte of the answer; ``idle_s`` from the head, or the last piece of the answer, to the next piece.
    ``text`` is the body of the 504.
    """

    total_s: float = math.inf
    answer_start_s: float = math.inf
    idle_s: float = math.inf
    text: bytes = b"request timeout"


NO_TIMEOUTS = Timeouts()
