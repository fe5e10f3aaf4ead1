"""Settings of the adaptive policy, under ``adaptive.`` in config-autoscaler: which pieces act, and their bounds.

Which policy a revision has is ``policy`` in ``serving/settings/autoscaler.py``, and how generous it is ``cold-start-worth``
there. Under ``policy: knative`` nothing here has an effect.
"""

from collections.abc import Iterator
from typing import Annotated

from serving.settings.knob import COUNT, DURATION, FLAG, Knob
from serving.settings.record import Clash, SettingsRecord

__all__ = ["AdaptiveSettings"]


class AdaptiveSettings(SettingsRecord, frozen=True, kw_only=True):
    """The pieces of the adaptive policy. Times are in seconds."""

    keep_alive: Annotated[bool, Knob(key="keep-alive", unit=FLAG)] = True
    """Whether the last pod stays by the probability that a request comes, rather than for the stable window. Default:
    ours, true."""

    keep_alive_min_s: Annotated[float, Knob(key="keep-alive-min", unit=DURATION, low=2, high=3600)] = 6.0
    """Shortest time for which the last pod stays after the last request, in seconds. Range: 2s to 1h. Default: ours, 6s,
    Knative's panic window."""

    keep_alive_max_s: Annotated[float, Knob(key="keep-alive-max", unit=DURATION, low=6, high=86400)] = 1800.0
    """Longest time for which the last pod stays after the last request, in seconds. Range: 6s to 24h. Default: ours, 30m."""

    keep_alive_bridge_s: Annotated[float, Knob(key="keep-alive-bridge", unit=DURATION, low=0, high=600)] = 45.0
    """Longest time of few expected requests, between two of many, through which the pod stays all the same, in seconds.
    Range: 0 to 10m. Default: ours, 45s: a pod that goes for less costs more in churn than it saves."""

    pre_warming: Annotated[bool, Knob(key="pre-warming", unit=FLAG)] = True
    """Whether a pod is started shortly before the time at which a periodic request is expected. Default: ours, true."""

    pre_warming_per_minute: Annotated[int, Knob(key="pre-warming-per-minute", unit=COUNT, low=1, high=100_000)] = 60
    """Most pods that one autoscaler starts ahead of requests in a minute, over all revisions. Range: 1 to 100000. Default:
    ours, 60."""

    forecast: Annotated[bool, Knob(key="forecast", unit=FLAG)] = True
    """Whether pods with a hard limit get room for the load that is expected when a new pod is ready, with a margin of standard
    deviations, rather than for the mean of the stable window over the utilisation. Default: ours, true."""

    def check(self) -> Iterator[Clash]:
        """The shortest time is not above the longest."""
        if self.keep_alive_min_s > self.keep_alive_max_s:
            yield Clash(
                fields=("adaptive.keep_alive_min_s", "adaptive.keep_alive_max_s"),
                what=f"keep-alive-min of {self.keep_alive_min_s:g} s is above keep-alive-max",
                expected=f"at most {self.keep_alive_max_s:g} s",
            )
