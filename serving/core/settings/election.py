"""Settings of leader election among replicas, for the controller and the autoscaler.

Source of keys: knative/serving 98e5ef90, ConfigMap config-leader-election; of the times: client-go's defaults, which
Kubernetes' components use, with a lease duration that is one second shorter. Knative's times are 60 s, 40 s and 10 s,
so that a takeover takes four times as long.
"""

from collections.abc import Iterator
from typing import Annotated

from serving.core.settings.knob import COUNT, DURATION, FLAG, Clash, Knob, SettingsRecord


class ElectionSettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of leader election. Each of the three times must exceed the next."""

    enabled: Annotated[bool, Knob(key="enabled", unit=FLAG)] = False
    """Whether a replica needs a lease before it works.

    If false, only one replica of each daemon may run. Default: ours, false, for one machine; the Deployments in
    ``config/daemons`` turn it on.
    """

    lease_duration_s: Annotated[
        float, Knob(key="lease-duration", legacy=("leaseDuration",), unit=DURATION, low=1, high=3600, whole=True)
    ] = 14.0
    """Time after the last observed renewal of a lease, after which another replica acquires the lease, in seconds.

    Range: 1s to 1h, whole seconds, above renew-deadline. Default: ours, 14s, because client-go's 15s gave a takeover
    after up to 15.2 s, and the goal is 15 s.
    """

    renew_deadline_s: Annotated[
        float, Knob(key="renew-deadline", legacy=("renewDeadline",), unit=DURATION, above=0, high=3600)
    ] = 10.0
    """Time without a successful renewal of its lease after which a replica stops its work, in seconds since it sent the
    last renewal. Range: above retry-period, below lease-duration; the difference covers clock drift and the time of a
    last write. Default: client-go, 10s.
    """

    retry_period_s: Annotated[
        float, Knob(key="retry-period", legacy=("retryPeriod",), unit=DURATION, above=0, high=600)
    ] = 2.0
    """Time between two renewals of a lease, and between two reads of the lease by waiting replicas, in seconds. Range:
    above 0, below renew-deadline. Default: client-go, 2s.
    """

    shard_count: Annotated[int, Knob(key="buckets", unit=COUNT, low=1, high=100)] = 1
    """Number of buckets into which revisions are divided; each bucket has a lease. With 1, one autoscaler decides for
    all revisions, and other autoscalers wait. All autoscalers must have the same number; stop all of them before you
    change it. Range: 1 to 100. Default: Knative, 1.
    """

    def check(self) -> Iterator[Clash]:
        """Yield an error if the times are not in order."""
        pairs = (("renew_deadline_s", "lease_duration_s"), ("retry_period_s", "renew_deadline_s"))
        for shorter, longer in pairs:
            if getattr(self, shorter) >= getattr(self, longer):
                names = [name.removesuffix("_s").replace("_", "-") for name in (shorter, longer)]
                yield Clash(
                    fields=(shorter, longer),
                    what=f"{names[0]} {getattr(self, shorter):g}s is not below {names[1]} {getattr(self, longer):g}s",
                    expected=f"below {getattr(self, longer):g}s",
                )
