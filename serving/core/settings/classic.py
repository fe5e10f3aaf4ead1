"""Settings of the June 2018 algorithm, below ``classic.`` in config-autoscaler, with the keys of that time.

Source of names and defaults: knative/serving ea02baa, config/config-autoscaler.yaml and pkg/autoscaler.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from serving.core.settings.knob import DURATION, NUMBER, Clash, Knob, SettingsRecord


class ClassicQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Harmful behaviours of Knative's algorithm of June 2018, off by default. All flags on restore it exactly."""

    idle_while_requests_run: bool = False
    """Only arriving requests keep a revision active, so that a request longer than the scale-to-zero threshold is cut
    off. Off: requests in flight count as traffic, too.
    """

    points_from_the_future: bool = False
    """A point with a future timestamp, from a pod whose clock is ahead, counts in both windows until that time has
    passed. Off: a point later than the decision counts as a point of the decision's time."""


ORIGINAL = ClassicQuirks(idle_while_requests_run=True, points_from_the_future=True)


class ClassicSettings(SettingsRecord, frozen=True, kw_only=True):
    """The settings of the classic algorithm."""

    multi_concurrency_target: Annotated[float, Knob(key="multi-concurrency-target", unit=NUMBER, low=0.01)] = 1.0
    """Mean number of requests in flight that one pod should have, for revisions whose pods serve several requests at
    once (concurrency model Multi). Range: from 0.01. Default: Knative of June 2018, 1.0."""

    single_concurrency_target: Annotated[float, Knob(key="single-concurrency-target", unit=NUMBER, low=0.01)] = 0.9
    """Target of requests in flight per pod for revisions whose pods serve one request at a time (concurrency model
    Single, containerConcurrency 1). Range: from 0.01. Default: Knative of June 2018, 0.9.
    """

    stable_window_s: Annotated[float, Knob(key="stable-window", unit=DURATION, low=6, high=3600)] = 60.0
    """Length of the averaging window outside panic mode, in seconds. Panic mode ends this time after the last increase
    of the number of pods. Range: 6s to 1h. Default: Knative of June 2018, 60s.
    """

    panic_window_s: Annotated[float, Knob(key="panic-window", unit=DURATION, low=1, high=3600)] = 6.0
    """Length of the averaging window that determines when panic mode starts, and the number of pods in panic mode, in
    seconds. Range: from 1s, at most the stable window. Default: Knative of June 2018, 6s.
    """

    max_scale_up_rate: Annotated[float, Knob(key="max-scale-up-rate", unit=NUMBER, above=1)] = 10.0
    """Largest ratio of desired to observed pods in one decision. Range: above 1, or nothing could grow. Default:
    Knative of June 2018, 10.
    """

    scale_to_zero_threshold_s: Annotated[float, Knob(key="scale-to-zero-threshold", unit=DURATION, above=0)] = 300.0
    """Time without traffic after which the classic algorithm proposes 0 pods, in seconds since the last request. Range:
    above 0. Default: Knative of June 2018, 5m.
    """

    quirks: ClassicQuirks = ClassicQuirks()
    """Behaviours of Knative's algorithm of June 2018 that are off by default, one flag each."""

    def check(self) -> Iterator[Clash]:
        """Yield an error if the panic window is longer than the stable window."""
        if self.panic_window_s > self.stable_window_s:
            yield Clash(
                fields=("classic.panic_window_s", "classic.stable_window_s"),
                what=f"panic window of {self.panic_window_s:g} s is longer than the stable window",
                expected=f"at most classic.stable-window, {self.stable_window_s:g} s",
            )
