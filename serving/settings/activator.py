"""Settings of the activator: how much it holds for each revision, and how it spreads requests over pods.

Source of defaults: knative/serving 98e5ef90, pkg/activator/net. Nothing here needs YAML: what decides about requests
stays small.
"""

from typing import Annotated

import msgspec

from serving.settings.knob import BYTES, COUNT, DURATION, Knob
from serving.settings.record import SettingsRecord

__all__ = ["ORIGINAL", "ActivatorSettings", "ShareQuirks"]


class ShareQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the original's assignment of pods to activators does and ours does not. Each is off; on, it is theirs."""

    pods_are_assigned_whole: bool = False
    """An activator gets whole pods, and with fewer pods than activators several get the same pod with all its slots, so
    that together they send it more than containerConcurrency. With 3 pods and 2 activators one gets two pods and one
    gets one. Off: slots are shared out, each to one activator, and shares differ by one slot at most."""

    unknown_index_takes_all: bool = False
    """An activator that does not find itself among the activators uses every slot of every pod, beside those that own
    them. Off: it uses none until it knows its place."""


ORIGINAL = ShareQuirks(pods_are_assigned_whole=True, unknown_index_takes_all=True)


class ActivatorSettings(SettingsRecord, frozen=True, kw_only=True):
    """All knobs of the activator. Times are in seconds."""

    queue_depth_max: Annotated[int, Knob(key="queue-depth-max", unit=COUNT, low=1, high=1_000_000)] = 10_000
    """Requests of one revision that may wait for a pod; one more is refused with 503. Range: 1 to 1000000. Default:
    Knative's breaker queue, 10000."""

    queue_bytes_max: Annotated[int, Knob(key="queue-bytes-max", unit=BYTES, low=0)] = 64 * 1024**2
    """Memory of the waiting requests of one revision; what would exceed it is refused with 503. 0 means no limit.
    Range: from 0. Default: ours, 64Mi, because an activator that counts requests only can be made to run out of memory
    (knative/serving issue 13583)."""

    queue_wait_max_s: Annotated[float, Knob(key="queue-wait-max", unit=DURATION, above=0, high=3600)] = 300.0
    """Longest wait for a pod, in seconds, from the arrival of the request to the grant of a slot; then it is refused
    with 503. Range: above 0 to 1h. Default: Knative's revision timeout, 300s, which ends the wait there."""

    first_free_concurrency_max: Annotated[int, Knob(key="first-free-concurrency-max", unit=COUNT, low=0, high=1000)] = 3
    """Largest containerConcurrency at which a request goes to the first pod with a free slot, in the order of addresses,
    so that few pods are kept busy; above it pods take turns. 0 means that they always do. Range: 0 to 1000. Default:
    Knative, 3."""

    quirks: ShareQuirks = ShareQuirks()
    """Behaviours of the original's assignment of pods to activators that are off by default, one flag each."""

    @property
    def queue_bytes_limit(self) -> int | None:
        """Bytes that may wait for one revision; None means no limit."""
        return self.queue_bytes_max or None
