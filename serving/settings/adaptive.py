"""Settings of what is learnt, under ``adaptive.`` in config-autoscaler: which pieces act, and their bounds.

Which policy a revision has is ``policy`` in ``serving/settings/autoscaler.py``, and how generous it is ``cold-start-worth``
there. Under ``policy: knative`` only what is said of the learnt target has an effect.
"""

from collections.abc import Iterator
from typing import Annotated

from serving.settings.knob import COUNT, DURATION, FLAG, NUMBER, Knob
from serving.settings.record import Clash, SettingsRecord


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

    learnt_target: Annotated[bool, Knob(key="learnt-target", unit=FLAG)] = True
    """Whether the autoscaler learns how many requests at once a pod should have, from response times, cpu and memory. The
    target is shown; it is in force only where a revision has the annotation ``autoscaling.serving.dev/target: learnt``.
    Default: ours, true."""

    learnt_target_period_s: Annotated[float, Knob(key="learnt-target-period", unit=DURATION, low=1, high=3600)] = 30.0
    """Time between two changes of the learnt target, in seconds; one halves it at most, or adds a quarter. Range: 1s to 1h.
    Default: ours, 30s, half of the stable window: from 100 to 3 it takes five changes."""

    learnt_target_max: Annotated[float, Knob(key="learnt-target-max", unit=NUMBER, low=1, high=100_000)] = 1000.0
    """Largest learnt target, in requests in flight; containerConcurrency bounds it too. Range: 1 to 100000. Default: ours,
    1000, ten times Knative's default target."""

    def check(self) -> Iterator[Clash]:
        """The shortest time is not above the longest."""
        if self.keep_alive_min_s > self.keep_alive_max_s:
            yield Clash(
                fields=("adaptive.keep_alive_min_s", "adaptive.keep_alive_max_s"),
                what=f"keep-alive-min of {self.keep_alive_min_s:g} s is above keep-alive-max",
                expected=f"at most {self.keep_alive_max_s:g} s",
            )
