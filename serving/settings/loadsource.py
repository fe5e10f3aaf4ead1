"""Where placement gets the load of nodes from.

Sources: paypal/load-watcher 17df8f9 (providers, metrics, windows); kubernetes-sigs/scheduler-plugins 903da7d (metricProvider).
"""

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from serving.settings.knob import DURATION, FLAG, TEXT, Knob
from serving.settings.record import Clash

METRICS_SERVER = "metrics-server"
PROMETHEUS = "prometheus"
SIGNALFX = "signalfx"
LOAD_WATCHER = "load-watcher"

_URLS = {
    METRICS_SERVER: "",
    PROMETHEUS: "http://prometheus-k8s.monitoring:9090",
    SIGNALFX: "https://api.signalfx.com",
    LOAD_WATCHER: "http://load-watcher.loadwatcher:2020",
}


class LoadSourceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All knobs of the source of node loads. Times are in seconds."""

    source: Annotated[
        str, Knob(key="source", unit=TEXT, choices=(METRICS_SERVER, PROMETHEUS, SIGNALFX, LOAD_WATCHER))
    ] = METRICS_SERVER
    """Who measures: metrics-server (metrics.k8s.io of the cluster), prometheus (PromQL), signalfx, or a load-watcher
    service. Default: Trimaran, metrics-server."""

    url: Annotated[str, Knob(key="url", unit=TEXT)] = ""
    """Address of the source, as http or https URL without a user or password. Empty means the source's own default:
    http://prometheus-k8s.monitoring:9090, https://api.signalfx.com, http://load-watcher.loadwatcher:2020. Default: ours,
    empty."""

    token_file: Annotated[str, Knob(key="token-file", unit=TEXT)] = ""
    """Path of a file with the token for the source, read at each look: a bearer token, for SignalFx the X-SF-Token.
    Default: ours, none."""

    ca_file: Annotated[str, Knob(key="ca-file", unit=TEXT)] = ""
    """Path of the certificates (PEM) that the source's own is verified by. Empty means those of the system. Default: ours,
    empty."""

    skip_verify: Annotated[bool, Knob(key="skip-verify", unit=FLAG)] = False
    """Whether any certificate of the source is taken. Default: ours, false; Trimaran's is true for Prometheus."""

    timeout_s: Annotated[float, Knob(key="timeout", unit=DURATION, above=0, high=60)] = 10.0
    """Longest time of one call to the source, in seconds. Range: above 0 to 60s. Default: load-watcher's for Prometheus,
    10s."""

    cpu_metric: Annotated[str, Knob(key="cpu-metric", unit=TEXT)] = ""
    """Prometheus: an expression of the share of cpu in use by node, from 0 to 1. SignalFx: the metric in percent. Empty
    means instance:node_cpu:ratio, or cpu.utilization. Default: load-watcher's."""

    memory_metric: Annotated[str, Knob(key="memory-metric", unit=TEXT)] = ""
    """The same for memory: instance:node_memory_utilisation:ratio, or memory.utilization. Default: load-watcher's."""

    node_label: Annotated[str, Knob(key="node-label", unit=TEXT)] = ""
    """Label (SignalFx: dimension) whose value is the node's name; a port behind it is left out. Empty means instance, or
    host. Default: load-watcher's."""

    cluster: Annotated[str, Knob(key="cluster", unit=TEXT)] = ""
    """SignalFx: value of the dimension "cluster" of the nodes. Empty means all. Default: ours, empty."""

    host_suffix: Annotated[str, Knob(key="host-suffix", unit=TEXT)] = ""
    """SignalFx: what a host's name has behind the node's, as in ".example.com". Default: ours, empty."""

    @property
    def address(self) -> str:
        """The URL to ask, without a slash at its end."""
        return (self.url or _URLS[self.source]).rstrip("/")

    def check(self) -> Iterator[Clash]:
        """A URL that cannot be asked, or that holds a credential; a SignalFx without a token."""
        try:
            parts = urlsplit(self.url)
            is_right = not self.url or (parts.scheme in ("http", "https") and bool(parts.hostname))
        except ValueError:
            is_right = False
        if not is_right or "@" in self.url:
            # Not repeated in the message: it may hold a password.
            expected = "an http or https URL without user and password; a token stands in a file (load.token-file)"
            yield Clash(fields=("load.url",), what="is not a URL that can be asked", expected=expected)
        if self.source == SIGNALFX and not self.token_file:
            yield Clash(fields=("load.token_file",), what="is empty", expected="a file with SignalFx' token")
