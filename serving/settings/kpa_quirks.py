"""Behaviours of Knative's algorithm of today that users suffer from. Off by default; on, the original's to the bit.

Source: knative/serving 98e5ef90, pkg/autoscaler and pkg/reconciler/autoscaling/kpa.
"""

import msgspec


class KpaQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Behaviours of Knative's algorithm of today that users suffer from. Each is off; on, it is the original's."""

    window_ends_in_zero: bool = False
    """A window whose last stat is exactly one window old reads 0 and counts as data, so that one decision in the
    second before it counts as empty sees no load: halves the pods, takes the last. Off: it is empty then."""

    weighted_window_reads_low: bool = False
    """A weighted window that is young, or silent of late, is averaged as if it had seen zeros: 20 % of the load after
    the first second. Off: the weights of the seconds seen are scaled to add up to 1."""

    resize_reads_low: bool = False
    """A window that changes its length while young counts as having seen all of its old length, and one that was
    silent for longer than that comes back as data of load 0. Off: what was not seen counts neither way."""

    delay_keeps_its_length: bool = False
    """The scale-down delay is read when the scaler is made; later changes wait for a restart. Off: it is the spec's."""

    restart_may_lower: bool = False
    """After a restart only a revision with more than one ready pod is held, by starting in panic: a single pod may go,
    and so may all that are not counted as ready in that instant. Off: besides, the scale found at the start is held
    until one full stable window was seen."""

    zero_without_proof: bool = False
    """The last pod goes without proof that the activator is in the path if the target burst capacity is -1, or if an
    activation timed out, although some pods may be ready. Off: proof comes first."""


SAFE = KpaQuirks()
"""The product's behaviour."""

ORIGINAL = KpaQuirks(
    window_ends_in_zero=True,
    weighted_window_reads_low=True,
    resize_reads_low=True,
    delay_keeps_its_length=True,
    restart_may_lower=True,
    zero_without_proof=True,
)
"""Knative's behaviour, for conformance and comparisons."""
