"""Settings of the autoscaler: ConfigMap config-autoscaler in Knative's keys, and our additions.

Source of keys, ranges and defaults: knative/serving 98e5ef90, pkg/autoscaler/config and pkg/deployment, unless a field
says otherwise. A revision's annotations may replace some of them: ``serving/core/settings/annotations.py``.
"""

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import (
    COLD_START_WORTH_ANNOTATION,
    DORMANT_ANNOTATION,
    POLICY_ANNOTATION,
    PROGRESS_DEADLINE_ANNOTATION,
    WINDOW_ANNOTATION,
    TargetMode,
)
from serving.core.model.ports import STATS_PORT
from serving.core.settings.budgets import BUDGETS
from serving.core.settings.classic import ClassicSettings
from serving.core.settings.dormancy import DORMANT, NEVER, MemorySettings
from serving.core.settings.innertls import InnerTlsSettings
from serving.core.settings.knob import (
    BYTES,
    COUNT,
    DURATION,
    FLAG,
    NUMBER,
    PERCENT,
    PERCENT_OR_FRACTION,
    TEXT,
    Clash,
    Knob,
    SettingsRecord,
    Unit,
)
from serving.core.settings.otlp import OtlpSettings
from serving.core.settings.triggers import TriggerSettings

KPA_CLASS = "kpa.autoscaling.knative.dev"
HPA_CLASS = "hpa.autoscaling.knative.dev"
CLASSIC_CLASS = "classic.autoscaling.serving.dev"

KNATIVE_POLICY = "knative"
ADAPTIVE_POLICY = "adaptive"
POLICIES = (KNATIVE_POLICY, ADAPTIVE_POLICY)
_POLICY_FORM = "[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?"
_POLICY_EXPECTED = f"{', '.join(POLICIES)}, or the name of an installed policy: at most 63 of a-z, 0-9, '-' and '_'"

DECISION_PERIOD_S = 2.0
"""Knative's decision period, in seconds."""

# Knative's smallest target per pod: with a lower one, a single request would need hundreds of pods.
TARGET_MIN = 0.01


def _read_policy(text: str) -> str:
    if re.fullmatch(_POLICY_FORM, text) is None:
        raise InvalidValue(text=text, expected=_POLICY_EXPECTED)
    return text


POLICY_NAME = Unit(
    name="[policy](policies.md)",
    plain="policy",
    read=_read_policy,
    read_plain=_read_policy,
    write=str,
    explains=True,
    form=_POLICY_FORM,
)


class AdaptiveSettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of the adaptive policy. Times are in seconds."""

    keep_alive: bool = True
    """Whether the probability of a request decides how long the last pod stays, rather than the stable window.

    Source: ours, true.
    """

    keep_alive_min_s: float = 6.0
    """Shortest time for which the last pod stays after the last request, in seconds. Source: ours, 6s, Knative's panic
    window."""

    keep_alive_start_max_s: float = 60.0
    """The last pod stays at least three times its measured start time, up to this time in seconds.

    Source: ours, 60s, Knative's stable window.
    """

    keep_alive_max_s: float = 1800.0
    """Longest time for which the last pod stays after the last request, in seconds. Source: ours, 30m."""

    keep_alive_bridge_s: float = 45.0
    """Longest pause between two keep windows during which the pod still stays, in seconds.

    Source: ours, 45s: removing a pod for less costs more than it saves.
    """

    pre_warming: bool = True
    """Whether a pod is started shortly before the time at which a periodic request is expected. Source: ours, true."""

    pre_warming_per_minute: int = 60
    """Most pods that one autoscaler starts ahead of requests in a minute, over all revisions. Source: ours, 60."""

    learnt_target: Annotated[str, Knob(key="learnt-target", unit=TEXT, choices=(*TargetMode, "true", "false"))] = (
        TargetMode.SHADOW.value
    )
    """Use of the learnt target, for revisions without the annotation ``autoscaling.serving.dev/target``. With shadow
    the learnt target is only shown. With protect the learnt target is used only if it is below the configured target,
    and results from cpu or memory. With use the learnt target is always used; with off no target is learnt. true means
    shadow, and false means off. Default: ours, shadow.
    """

    learnt_target_period_s: float = 30.0
    """Time between two changes of the learnt target, in seconds; a change at most halves it or adds a quarter.

    Source: ours, 30s, half of the stable window: from 100 to 3 it takes five changes.
    """

    learnt_target_max: float = 1000.0
    """Largest learnt target, in requests in flight; containerConcurrency bounds it too. Source: ours, 1000, ten times
    Knative's default target."""

    def check(self) -> Iterator[Clash]:
        """Yield an error if the shortest keep-alive exceeds the longest."""
        if self.keep_alive_min_s > self.keep_alive_max_s:
            yield Clash(
                fields=("adaptive.keep_alive_min_s", "adaptive.keep_alive_max_s"),
                what=f"keep-alive-min of {self.keep_alive_min_s:g} s is above keep-alive-max",
                expected=f"at most {self.keep_alive_max_s:g} s",
            )


class KpaQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Harmful behaviours of Knative's current algorithm, off by default. A flag that is on restores Knative's."""

    window_ends_in_zero: bool = False
    """A window whose last stat is exactly one window old has load 0 and is not empty. One decision then halves the
    pods, or removes the last pod. Off: the window is empty."""

    weighted_window_reads_low: bool = False
    """A weighted average counts unobserved seconds as load 0, in a new or a recently silent window: after the first
    second it is 20 % of the load. Off: the weights of the observed seconds are scaled to a sum of 1."""

    resize_reads_low: bool = False
    """A new window counts as observed for its whole old length after a resize. A window that was silent for longer than
    that length has load 0 after a resize. Off: unobserved time is not counted.
    """

    delay_keeps_its_length: bool = False
    """The scale-down delay is read only when the scaler is created; a change needs a restart. Off: it is the spec's."""

    restart_may_lower: bool = False
    """After a restart, only a revision with several ready pods keeps them, because it starts in panic. A single pod may
    be removed, and all pods that are not ready at that moment. Off: the scale at the restart is a lower bound, too,
    until one whole stable window was observed."""

    zero_without_proof: bool = False
    """The last pod is removed without proof that the activator is in the path, if the target burst capacity is -1, or
    if an activation timed out, even while some pods are ready. Off: the proof is always required."""

    failure_keeps_its_deadline: bool = False
    """The pods of a failed revision without a route restart until the progress deadline, which begins again whenever
    they were ready. Off: a revision without a route scales to zero immediately if it is not Ready."""

    delay_ignores_initial_scale: bool = False
    """Pods of the initial scale are removed as soon as all were ready once, regardless of the scale-down delay. Off:
    the delay begins at that time."""


SAFE = KpaQuirks()
"""The product's behaviour."""

ORIGINAL = KpaQuirks(**dict.fromkeys(KpaQuirks.__struct_fields__, True))
"""Knative's behaviour, for conformance and comparisons."""


class AutoscalerSettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of the autoscaler. Times are in seconds, shares are ratios."""

    pod_autoscaler_class: Annotated[
        str, Knob(key="pod-autoscaler-class", unit=TEXT, choices=(KPA_CLASS, CLASSIC_CLASS, HPA_CLASS), live=True)
    ] = KPA_CLASS
    """Algorithm of revisions without the annotation ``class``: kpa is Knative's present algorithm, classic is Knative's
    algorithm of June 2018, and hpa is a HorizontalPodAutoscaler. Default: Knative, kpa.
    """

    policy: Annotated[str, Knob(key="policy", unit=POLICY_NAME, annotation=POLICY_ANNOTATION)] = ADAPTIVE_POLICY
    """Policy of revisions without the annotation ``policy``. adaptive learns from each revision's requests how long to
    keep the last pod, and when to start a pod ahead; under load adaptive decides as Knative. knative always decides as
    Knative. Revisions with annotations that tune Knative's algorithm get the policy knative. Any other name
    selects an installed package ([policies.md](policies.md)); if the name is unknown, Knative's policy decides.
    Default: ours, adaptive.
    """

    cold_start_worth_s: Annotated[
        float,
        Knob(
            key="cold-start-worth",
            unit=NUMBER,
            low=1,
            high=1_000_000,
            annotation=COLD_START_WORTH_ANNOTATION,
        ),
    ] = 120.0
    """Worth of avoiding one cold start, in pod-seconds, under ``policy: adaptive``.

    A pod stays while the probability of a request within the next second is at least 1 / worth. A start that delays
    several requests counts once for each request. A higher worth keeps more pods. Range: 1 to 1000000. Default: ours,
    120: on recorded workloads no cost rises against Knative's (docs/scaling-quality.md).
    """

    dormant: Annotated[str, Knob(key="dormant", unit=DORMANT, annotation=DORMANT_ANNOTATION)] = NEVER
    """When an idle pod becomes dormant, for revisions under ``policy: adaptive``. "after=10s" freezes the app after 10
    s without a request, until the next request. "only" also freezes the app after 10 s, and keeps the last pod. "never"
    keeps apps running. A revision's annotation applies under every policy ([dormant.md](dormant.md)). Default: ours,
    never.
    """

    dormant_cost: float = 0.2
    """Price of a second of a dormant pod; a running pod's second costs 1.

    The adaptive policy keeps cheaper pods longer. Source: ours, 0.2: memory without cpu.
    """

    node_boot_s: Annotated[float, Knob(key="node-boot-time", unit=DURATION, low=0, high=3600)] = 0.0
    """Time from the request for a node until it runs pods, in seconds.

    For node groups with ``anticipation``, the autoscaler publishes each revision's expected pods after this time. 0
    publishes nothing. Range: 0 to 1h. Default: ours, 0s.
    """

    decision_period_s: Annotated[float, Knob(key="decision-period", unit=DURATION, low=0.1, high=60, live=True)] = (
        DECISION_PERIOD_S
    )
    """Time between the starts of two regular decisions about a revision, in seconds. Range: 100ms to 1m. Default:
    Knative's fixed tick, 2s.
    """

    stable_window_s: Annotated[
        float, Knob(key="stable-window", unit=DURATION, low=6, high=3600, whole=True, annotation=WINDOW_ANNOTATION)
    ] = 60.0
    """Length of the averaging window outside panic mode, in seconds before the decision. Range: 6s to 1h, whole
    seconds. Default: Knative, 60s.
    """

    panic_window_ratio: Annotated[
        float, Knob(key="panic-window-percentage", unit=PERCENT, low=0.01, high=1, annotation="panic-window-percentage")
    ] = 0.1
    """Length of the panic window in percent of the stable window, rounded to seconds, at least 1 s. Range: 1 to 100
    percent. Default: Knative, 10.
    """

    panic_threshold_ratio: Annotated[
        float,
        Knob(key="panic-threshold-percentage", unit=PERCENT, low=1.1, high=10, annotation="panic-threshold-percentage"),
    ] = 2.0
    """Ratio of desired to ready pods at which panic mode begins, in percent. Range: 110 to 1000 percent, as Knative's
    annotation; its ConfigMap is not checked. Default: Knative, 200.
    """

    container_concurrency_target_ratio: Annotated[
        float, Knob(key="container-concurrency-target-percentage", unit=PERCENT_OR_FRACTION, above=0, high=1, live=True)
    ] = 0.7
    """Target utilization: the percentage of a pod's concurrency that the autoscaler aims at. Range: above 0 to 100
    percent; Knative reads values up to 1 as fractions. Default: Knative, 70.
    """

    container_concurrency_target_default: Annotated[
        float, Knob(key="container-concurrency-target-default", unit=NUMBER, low=TARGET_MIN, live=True)
    ] = 100.0
    """Target of requests in flight per pod, for revisions with containerConcurrency 0 (no limit).

    Range: from 0.01, also after the share above. Default: Knative, 100.
    """

    requests_per_second_target_default: Annotated[
        float, Knob(key="requests-per-second-target-default", unit=NUMBER, low=TARGET_MIN, live=True)
    ] = 200.0
    """Target requests a second per pod, for revisions with ``metric: rps``. Range: from 0.01. Default: Knative, 200."""

    target_burst_capacity: Annotated[
        float, Knob(key="target-burst-capacity", unit=NUMBER, low=0, also=(-1,), annotation="target-burst-capacity")
    ] = 211.0
    """Free capacity of all pods together, in requests, below which the activator stays in the path. With 0 the
    activator leaves the path when a pod is ready; with -1 the activator always stays. Range: from 0, or -1. Default:
    Knative, 211, a prime, so that it never is a multiple of the target.
    """

    activator_capacity: Annotated[float, Knob(key="activator-capacity", unit=NUMBER, low=1, live=True)] = 100.0
    """Number of requests that one activator buffers for a revision. This key of Knative has no effect here, because all
    activators serve all revisions. Range: from 1. Default: Knative, 100.
    """

    max_scale_up_rate: Annotated[float, Knob(key="max-scale-up-rate", unit=NUMBER, above=1, live=True)] = 1000.0
    """Largest factor by which one decision increases the number of ready pods. Range: above 1. Default: Knative, 1000.
    """

    max_scale_down_rate: Annotated[float, Knob(key="max-scale-down-rate", unit=NUMBER, above=1, live=True)] = 2.0
    """Largest factor by which one decision reduces the number of ready pods. Range: above 1. Default: Knative, 2."""

    scale_down_delay_s: Annotated[
        float, Knob(key="scale-down-delay", unit=DURATION, low=0, high=3600, whole=True, annotation="scale-down-delay")
    ] = 0.0
    """Time for which all decisions must want fewer pods before the autoscaler removes pods, in seconds. 0 removes pods
    immediately. Range: 0 to 1h, whole seconds. Default: Knative, 0s.
    """

    enable_scale_to_zero: Annotated[bool, Knob(key="enable-scale-to-zero", unit=FLAG, live=True)] = True
    """Whether revisions without traffic scale to 0 pods. If false, these revisions keep 1 pod. Default: Knative, true.
    """

    scale_to_zero_grace_period_s: Annotated[
        float, Knob(key="scale-to-zero-grace-period", unit=DURATION, above=0, live=True)
    ] = 30.0
    """Longest time between the switch of a revision's endpoints to the activators and the removal of its last pod, in
    seconds.

    Range: above 0. Default: Knative, 30s.
    """

    scale_to_zero_pod_retention_period_s: Annotated[
        float,
        Knob(
            key="scale-to-zero-pod-retention-period",
            unit=DURATION,
            low=0,
            high=3600,
            annotation="scale-to-zero-pod-retention-period",
        ),
    ] = 0.0
    """Minimum time for which the last pod stays after the decision for 0 pods, in seconds. With 0 only the grace period
    applies. Range: 0 to 1h. Default: Knative, 0s.
    """

    initial_scale: Annotated[int, Knob(key="initial-scale", unit=COUNT, low=0, annotation="initial-scale")] = 1
    """Number of pods that a new revision starts with. The revision becomes ready once all these pods are ready. 0 needs
    allow-zero-initial-scale. Default: Knative, 1.
    """

    allow_zero_initial_scale: Annotated[bool, Knob(key="allow-zero-initial-scale", unit=FLAG, live=True)] = False
    """Whether a revision may become ready without ever having had a pod. Default: Knative, false."""

    min_scale: Annotated[int, Knob(key="min-scale", unit=COUNT, low=0, annotation="min-scale")] = 0
    """Minimum number of pods of a revision that a route names. 0 means no minimum. min-scale must not exceed max-scale.
    Default: Knative, 0.
    """

    max_scale: Annotated[int, Knob(key="max-scale", unit=COUNT, low=0, annotation="max-scale")] = 0
    """Maximum number of pods of a revision. With 0 the maximum is max-scale-limit. Default: Knative, 0."""

    max_scale_limit: Annotated[int, Knob(key="max-scale-limit", unit=COUNT, low=0, live=True)] = 1000
    """Maximum number of pods of each revision. 0 means no limit. Default: ours, 1000; Knative ships no limit.
    """

    budget: Annotated[str, Knob(key="budget", unit=BUDGETS, live=True)] = ""
    """Maximum number of pods, or maximum of the memory that pods request, for all revisions together and for single
    namespaces: "20 pods, shop=8Gi". Default: ours, none.
    """

    progress_deadline_s: Annotated[
        float,
        Knob(
            key="progress-deadline",
            legacy=("progressDeadline",),
            config_map="config-deployment",
            unit=DURATION,
            above=0,
            high=366 * 86400,
            whole=True,
            annotation=PROGRESS_DEADLINE_ANNOTATION,
        ),
    ] = 600.0
    """Time in which a revision's first pods must become ready, in seconds from the decision to start them. Range: above
    0 to 8784h, whole seconds. Default: Knative's config-deployment, 600s.
    """

    stats_address: Annotated[str, Knob(key="stats-address", unit=TEXT)] = f"127.0.0.1:{STATS_PORT}"
    """Host and port to which pods and activators send statistics.

    Default: ours, 127.0.0.1:6081.
    """

    host_names: Annotated[str, Knob(key="host-names", unit=TEXT)] = ""
    """Further accepted Host names in queries of metrics and decisions, separated by commas. Addresses, names of one
    label and names of Services are always accepted. Other Host names are rejected to prevent DNS rebinding. Default:
    ours, none.
    """

    activator_address: Annotated[str, Knob(key="activator-address", unit=TEXT)] = "127.0.0.1:8080"
    """Host and port at which the activator must respond to a probe before the last pod of a revision is removed.
    Default: ours, 127.0.0.1:8080.
    """

    stats_connections_max: int = 50_000
    """Most connections of pods and activators at once; one more is refused. Source: ours, 50000, what one process takes
    at one statistic a second."""

    decisions_kept: int = 50
    """Decisions of each revision kept for explanations; repetitions take no place. Source: ours, 50."""

    decision_log_bytes_max: Annotated[int, Knob(key="decision-log-bytes", unit=BYTES, low=0, high=2**34)] = 64 * 2**20
    """Maximum total size of the decision log's files on one machine, in bytes. 0 means no log. Range: 0 to 16Gi.
    Default: ours, 64Mi, some 20000 decisions."""

    stats_audience: Annotated[str, Knob(key="stats-audience", unit=TEXT)] = ""
    """Audience of the tokens with which a cluster's pods open their websockets; the API server reviews each token.

    If empty, the autoscaler accepts only tokens derived from the cluster key, as on one machine. Default: ours, empty;
    in ``config/`` serving-stats, as the controller's sidecar.stats-audience.
    """

    inner_tls: InnerTlsSettings = InnerTlsSettings()
    """TLS with activators, queue-proxies, other autoscalers and the dashboard."""

    otlp: OtlpSettings = OtlpSettings()
    """Receiver of the page's numbers."""

    memory: MemorySettings = MemorySettings()
    """When the memory of one machine is short."""

    classic: ClassicSettings = ClassicSettings()
    """The algorithm of June 2018."""

    triggers: TriggerSettings = TriggerSettings()
    """Defaults of trigger policies; a ScalingPolicy overrides them."""

    adaptive: AdaptiveSettings = AdaptiveSettings()
    """Settings of ``policy: adaptive``."""

    quirks: KpaQuirks = KpaQuirks()
    """Behaviours of Knative's algorithm that are off by default, one flag each."""

    def check(self) -> Iterator[Clash]:
        """Yield contradictions between fields: targets and ratios, scales, and the classic windows."""
        target = self.container_concurrency_target_default * self.container_concurrency_target_ratio
        if target < TARGET_MIN:
            yield Clash(
                fields=("container_concurrency_target_default", "container_concurrency_target_ratio"),
                what=f"the target after its percentage is {target:g}",
                expected=f"at least {TARGET_MIN:g}",
            )
        if self.initial_scale == 0 and not self.allow_zero_initial_scale:
            yield Clash(
                fields=("initial_scale", "allow_zero_initial_scale"),
                what="initial-scale is 0 while allow-zero-initial-scale is false",
                expected="initial-scale of at least 1, or allow-zero-initial-scale true",
            )
        if self.max_scale and self.min_scale > self.max_scale:
            yield Clash(
                fields=("min_scale", "max_scale"),
                what=f"min-scale {self.min_scale} is above max-scale {self.max_scale}",
                expected=f"min-scale of at most {self.max_scale}",
            )
        if self.max_scale_limit and max(self.max_scale, self.min_scale) > self.max_scale_limit:
            over = "max_scale" if self.max_scale > self.max_scale_limit else "min_scale"
            yield Clash(
                fields=(over, "max_scale_limit"),
                what=f"{over.replace('_', '-')} {getattr(self, over)} is above max-scale-limit {self.max_scale_limit}",
                expected=f"at most {self.max_scale_limit}",
            )
        yield from self.adaptive.check()
        yield from self.classic.check()
