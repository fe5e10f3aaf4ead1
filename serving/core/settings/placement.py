"""Settings of placement: node scores and their weights, assumptions of the risk score, and sources of load.

Sources: kubernetes/kubernetes 1.7, plugin/pkg/scheduler/algorithmprovider (providers and their weights);
kubernetes-sigs/scheduler-plugins 903da7d, apis/config and pkg/trimaran (risk arguments). The scores are registered in
``serving/nodes/placement/scores/score.py``; here their names are text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.settings.knob import COUNT, DURATION, FLAG, NUMBER, TEXT, Clash, Knob, SettingsRecord

METRICS_SERVER = "metrics-server"
PROMETHEUS = "prometheus"
LOAD_WATCHER = "load-watcher"

_URLS = {
    METRICS_SERVER: "",
    PROMETHEUS: "http://prometheus-k8s.monitoring:9090",
    LOAD_WATCHER: "http://load-watcher.loadwatcher:2020",
}

DEFAULT_PROVIDER = "default"
CLUSTER_AUTOSCALER_PROVIDER = "cluster-autoscaler"
LOW_RISK_PROVIDER = "low-risk"

NODE_POLICIES: Mapping[str, str] = {
    "spread": DEFAULT_PROVIDER,
    "pack": CLUSTER_AUTOSCALER_PROVIDER,
    "low-risk": LOW_RISK_PROVIDER,
}
"""The providers that --node-policy selects."""

_WEIGHTS_EXPECTED = 'weights such as "LeastRequested=1, BalancedResourceAllocation=2", each from 1 to 10000'
# Kubernetes' largest default weight (NodePreferAvoidPods); larger ones invite overflows elsewhere.
_WEIGHT_MAX = 10_000


class LoadSourceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the source of node loads. Times are in seconds."""

    source: Annotated[str, Knob(key="source", unit=TEXT, choices=(METRICS_SERVER, PROMETHEUS, LOAD_WATCHER))] = (
        METRICS_SERVER
    )
    """Source of measurements: metrics-server (metrics.k8s.io of the cluster), prometheus (PromQL), or a load-watcher
    service. Default: Trimaran, metrics-server."""

    url: Annotated[str, Knob(key="url", unit=TEXT)] = ""
    """Address of the source, as http or https URL without a user or password. Empty means the source's default:
    http://prometheus-k8s.monitoring:9090, http://load-watcher.loadwatcher:2020. Default: ours, empty.
    """

    token_file: Annotated[str, Knob(key="token-file", unit=TEXT)] = ""
    """Path of a file with a bearer token for the source, read before each query. Default: ours, none."""

    ca_file: Annotated[str, Knob(key="ca-file", unit=TEXT)] = ""
    """Path of the authorities (PEM) that verify the source's certificate. Empty means the system's authorities.
    Default: ours, empty.
    """

    skip_verify: Annotated[bool, Knob(key="skip-verify", unit=FLAG)] = False
    """Whether the extender accepts any certificate of the source. Default: ours, false; Trimaran's is true for
    Prometheus.
    """

    timeout_s: float = 10.0
    """Longest time of one call to the source, in seconds. Source: load-watcher's for Prometheus, 10s."""

    cpu_metric: Annotated[str, Knob(key="cpu-metric", unit=TEXT)] = ""
    """Prometheus: an expression of the share of cpu in use by node, from 0 to 1. Empty means instance:node_cpu:ratio.
    Default: load-watcher's."""

    memory_metric: Annotated[str, Knob(key="memory-metric", unit=TEXT)] = ""
    """Prometheus: an expression of the share of memory in use by node, from 0 to 1. Empty means
    instance:node_memory_utilisation:ratio. Default: load-watcher's."""

    node_label: Annotated[str, Knob(key="node-label", unit=TEXT)] = ""
    """Prometheus: label with the node's name; a port after the name is ignored. Empty means instance. Default:
    load-watcher's."""

    @property
    def address(self) -> str:
        """The URL of the source, without a trailing slash."""
        return (self.url or _URLS[self.source]).rstrip("/")

    def check(self) -> Iterator[Clash]:
        """Yield an error if the URL is invalid or contains a password."""
        try:
            parts = urlsplit(self.url)
            is_right = not self.url or (parts.scheme in ("http", "https") and bool(parts.hostname))
        except ValueError:
            is_right = False
        if not is_right or "@" in self.url:
            # The message does not repeat the URL, which may contain a password.
            expected = "an http or https URL without user and password; a token stands in a file (load.token-file)"
            yield Clash(fields=("load.url",), what="is not a usable URL", expected=expected)


class ExtenderTlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the extender's TLS. Times are in seconds."""

    certificate_file: Annotated[str, Knob(key="certificate-file", unit=TEXT)] = ""
    """Path of the certificate (PEM) with its chain. Empty means plain HTTP. Default: ours, empty."""

    key_file: Annotated[str, Knob(key="key-file", unit=TEXT)] = ""
    """Path of the certificate's key (PEM). Default: ours, empty."""

    client_ca_file: Annotated[str, Knob(key="client-ca-file", unit=TEXT)] = ""
    """Path of the CA certificates (PEM) that must have signed a caller's certificate. If empty, callers need no
    certificate. Default: ours, empty.
    """

    reload_period_s: float = 10.0
    """Time between two checks of the files, in seconds; changes apply to the next connection. Source: ours, 10s."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files to read; none without TLS."""
        return tuple(filter(None, (self.certificate_file, self.key_file, self.client_ca_file)))

    def check(self) -> Iterator[Clash]:
        """Yield contradictions between files that belong together."""
        if bool(self.certificate_file) is not bool(self.key_file):
            fields = ("tls.certificate_file", "tls.key_file")
            yield Clash(fields=fields, what="one is set without the other", expected="both, or none")
        elif self.client_ca_file and not self.certificate_file:
            fields = ("tls.client_ca_file", "tls.certificate_file")
            yield Clash(
                fields=fields, what="callers cannot be verified without TLS", expected="a certificate and its key"
            )


def read_weights(text: str) -> dict[str, int]:
    """Parse the weights of node scores: "LeastRequested=1, LowRiskOverCommitment=3".

    An empty text selects the provider's weights. Raises ``InvalidValue``.
    """
    weights: dict[str, int] = {}
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,5})\s*", part, re.ASCII)
        if not match or match[1] in weights or not 1 <= int(match[2]) <= _WEIGHT_MAX:
            raise InvalidValue(text=text, expected=_WEIGHTS_EXPECTED)
        weights[match[1]] = int(match[2])
    return weights


class PlacementQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Harmful behaviours of Kubernetes' and Trimaran's scores, off by default. All flags on restore them exactly."""

    assumed_requests_fill_nodes: bool = False
    """MostRequested and BalancedResourceAllocation score 0 for a node that is overfull only by assumed requests: 100 m
    and 200 MiB for each container without requests. Ten idle best-effort pods then fill one core, and packing avoids a
    node that is nearly full. Off: assumed requests at most fill a node; only real requests overfill it, as in
    Kubernetes since PR 102925, but only on nodes where the pod fits.
    """

    best_effort_pods_score_zero: bool = False
    """LowRiskOverCommitment scores every node 0 for a pod without requests and limits, so that the score does not
    affect its placement. Off: such a pod is scored by the risk of the nodes, as in the plugin's proposal."""

    unmeasured_nodes_score_zero: bool = False
    """LowRiskOverCommitment scores 0 for a node without metrics: new nodes are avoided, and all nodes are equal while
    the source of metrics fails. Off: such a node is scored by requests and limits only.
    """

    any_entry_is_a_mean: bool = False
    """A metric with an unknown operator, or a deviation without a mean, counts as a measurement with mean 0. Off: a
    resource without a mean counts as unmeasured."""

    metrics_never_expire: bool = False
    """Metrics are used until newer ones arrive, regardless of their age. Off: metrics older than metrics-age-max count
    as missing."""

    limits_outrank_load: bool = False
    """The probability of overuse assumes that the load stays below the sum of limits, even if the measured mean is
    above that sum: a node at 95 % real load from pods without limits has load risk 0. Off: the load risk is at least
    the mean load minus the limits, both as shares of the node.
    """

    small_deviations_get_lost: bool = False
    """For deviations below about 1e-8 of the node, such as those of a constant metric, the computed variance rounds to
    0, and the load risk is 1 for any load. Off: such a deviation counts as 0, and only the mean decides."""


ORIGINAL = PlacementQuirks(**dict.fromkeys(PlacementQuirks.__struct_fields__, True))


class PlacementSettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of placement. Times are in seconds, shares are ratios."""

    provider: Annotated[
        str,
        Knob(key="provider", unit=TEXT, choices=(DEFAULT_PROVIDER, CLUSTER_AUTOSCALER_PROVIDER, LOW_RISK_PROVIDER)),
    ] = DEFAULT_PROVIDER
    """Set of node scores and weights: default spreads pods over nodes, cluster-autoscaler packs pods so that nodes
    become empty, low-risk avoids nodes that may be overloaded.

    Default: Kubernetes, default.
    """

    score_weights: Annotated[str, Knob(key="score-weights", unit=TEXT)] = ""
    """Weights of node scores, as in "LeastRequested=1, LowRiskOverCommitment=3", each from 1 to 10000. Empty means the
    provider's weights. Default: ours, empty.
    """

    smoothing_window_size: Annotated[int, Knob(key="smoothing-window-size", unit=COUNT, low=1)] = 5
    """Number of samples that the metrics' source averages; the reported deviation is multiplied by the square root of
    this number. 1 means unsmoothed.

    Range: from 1. Default: Trimaran, 5.
    """

    cpu_risk_limit_weight: Annotated[float, Knob(key="cpu-risk-limit-weight", unit=NUMBER, low=0, high=1)] = 0.5
    """Weight of the risk from cpu limits in a node's cpu risk; the risk from measured load has the remaining weight.
    Range: 0 to 1. Default: Trimaran, 0.5.
    """

    memory_risk_limit_weight: Annotated[float, Knob(key="memory-risk-limit-weight", unit=NUMBER, low=0, high=1)] = 0.5
    """Weight of the risk from memory limits in a node's memory risk; the risk from measured load has the remaining
    weight. Range: 0 to 1. Default: Trimaran, 0.5.
    """

    metrics_age_max_s: float = 300.0
    """Age after which a node's metrics count as missing, in seconds, from the end of the measurement to the decision.
    Source: ours, 5m, ten refreshes of Trimaran, which has no bound."""

    load_variation_margin: Annotated[float, Knob(key="load-variation-margin", unit=NUMBER, low=0)] = 1.0
    """Factor of the load's deviation in the node score LoadVariationRiskBalancing. 0 means that only the mean counts.
    Range: from 0. Default: Trimaran, 1.
    """

    load_variation_sensitivity: Annotated[float, Knob(key="load-variation-sensitivity", unit=NUMBER, above=0)] = 1.0
    """Degree of the root of the load's deviation in the node score LoadVariationRiskBalancing. Range: above 0. Default:
    Trimaran, 1.
    """

    load_period_s: Annotated[float, Knob(key="load-period", unit=DURATION, low=0, high=300)] = 15.0
    """Time between two queries of nodes' usage, in seconds; 0 means that the usage is never queried. Range: 0 to 5m.
    Default: ours, 15s, metrics-server's own resolution."""

    load_samples_max: int = 20
    """Newest samples of each node for the mean and deviation of its load. Source: ours, 20, five minutes."""

    binds: Annotated[bool, Knob(key="binds", unit=FLAG)] = False
    """Whether ``POST /bind`` binds pods to nodes, for schedulers without a binder; the daemon needs the right to create
    bindings. Default: ours, false.
    """

    listen_address: Annotated[str, Knob(key="listen-address", unit=TEXT)] = "127.0.0.1:6082"
    """Host and port of the listener for kube-schedulers. Without a certificate the
    listener uses plain HTTP; beyond one machine protect the listener by a network policy. Default: ours,
    127.0.0.1:6082.
    """

    load: LoadSourceSettings = LoadSourceSettings()
    """The source of the load of nodes."""

    tls: ExtenderTlsSettings = ExtenderTlsSettings()
    """TLS of the extender."""

    quirks: PlacementQuirks = PlacementQuirks()
    """Behaviours of Kubernetes' and Trimaran's node scores that are off by default, one flag each."""

    def check(self) -> Iterator[Clash]:
        """Check the weights, the load source, and the TLS files."""
        try:
            read_weights(self.score_weights)
        except InvalidValue as error:
            yield Clash(fields=("score_weights",), what=str(error), expected=error.expected)
        yield from self.load.check()
        yield from self.tls.check()
