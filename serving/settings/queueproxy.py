"""Settings of the queue-proxy: how many requests a pod takes at once, how many wait, and how often it reports.

Source of defaults: knative/serving 98e5ef90, pkg/queue and config-defaults. A pod gets its revision's own values in its
environment. Nothing here needs YAML: the sidecar stays small.
"""

from typing import Annotated

import msgspec

from serving.settings.knob import COUNT, DURATION, Knob
from serving.settings.record import SettingsRecord

__all__ = ["ORIGINAL", "MeterQuirks", "QueueProxySettings"]


class MeterQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the original's request statistics do and a report must not. Each is off; on, it is the original's."""

    level_may_go_negative: bool = False
    """The end of a request that never arrived is taken off all the same, so that the load reads too low from then on,
    and below 0 when the pod is idle. Off: it is counted as unmatched and changes nothing else."""


ORIGINAL = MeterQuirks(level_may_go_negative=True)


class QueueProxySettings(SettingsRecord, frozen=True, kw_only=True):
    """All knobs of the queue-proxy. Times are in seconds."""

    container_concurrency: Annotated[
        int, Knob(key="container-concurrency", config_map="config-defaults", unit=COUNT, low=0, high=1000)
    ] = 0
    """Requests that a pod works on at once, for revisions that do not say containerConcurrency. 0 means no limit, and
    then nothing waits in the queue-proxy. Range: 0 to 1000. Default: Knative, 0."""

    queue_depth_per_slot: Annotated[int, Knob(key="queue-depth-per-slot", unit=COUNT, low=0, high=1000)] = 10
    """Requests that may wait in a pod for each that it works on at once; one more is refused with 503. 0 means that
    nothing waits. Range: 0 to 1000. Default: Knative's fixed factor, 10."""

    queue_wait_max_s: Annotated[float, Knob(key="queue-wait-max", unit=DURATION, above=0, high=3600)] = 300.0
    """Longest wait for a slot in a pod, in seconds, from the arrival of the request to the grant of a slot; then it is
    refused with 503. Range: above 0 to 1h. Default: Knative's revision timeout, 300s, which ends the wait there."""

    report_period_s: Annotated[float, Knob(key="report-period", unit=DURATION, low=0.1, high=10)] = 1.0
    """Time between two statistics of a pod, in seconds. The autoscaler adds up what falls into each second: with longer
    periods it reads too little load, with shorter ones too much concurrency. Range: 100ms to 10s. Default: Knative's
    fixed period, 1s."""

    quirks: MeterQuirks = MeterQuirks()
    """Behaviours of the original's request statistics that are off by default, one flag each."""

    @property
    def slots(self) -> int | None:
        """Requests that a pod works on at once; None means no limit."""
        return self.container_concurrency or None

    @property
    def queue_depth_max(self) -> int:
        """Requests that may wait in a pod: 10 for each slot, so that of 11 at once a pod with one slot takes all."""
        return self.queue_depth_per_slot * self.container_concurrency
