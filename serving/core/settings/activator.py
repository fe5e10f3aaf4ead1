"""Settings of the activator: the bounds of each revision's queue, and the choice of pods.

Source of defaults: knative/serving 98e5ef90, pkg/activator/net.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from serving.core.model.ports import ACTIVATOR_METRICS_PORT, STATS_PORT
from serving.core.settings.http import HttpSettings
from serving.core.settings.innertls import InnerTlsSettings
from serving.core.settings.knob import BYTES, COUNT, DURATION, FLAG, PERCENT, TEXT, Clash, Knob, SettingsRecord
from serving.core.settings.otlp import OtlpSettings
from serving.core.settings.tls import TlsSettings

REDIRECTED = "Redirected"
SECRETS_OF_PODS = "pod"
SECRETS_OF_REVISIONS = "revision"


def _read_protocol(text: str) -> str:
    # Knative accepts either case.
    return text.capitalize()


_PROTOCOL = msgspec.structs.replace(TEXT, name="protocol", read=_read_protocol, read_plain=_read_protocol)


class ActivatorSettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of the activator. Times are in seconds."""

    queue_depth_max: Annotated[int, Knob(key="queue-depth-max", unit=COUNT, low=1, high=1_000_000)] = 10_000
    """Maximum number of requests of one revision that wait for a pod; further requests get 503. Range: 1 to 1000000.
    Default: Knative's breaker queue, 10000.
    """

    queue_bytes_max: Annotated[int, Knob(key="queue-bytes-max", unit=BYTES, low=0)] = 64 * 1024**2
    """Maximum memory of one revision's waiting requests; further requests get 503. 0 means no limit. Range: from 0.
    Default: ours, 64Mi, because a bound on the number alone does not bound memory (knative/serving issue 13583).
    """

    queue_wait_max_s: Annotated[float, Knob(key="queue-wait-max", unit=DURATION, above=0, high=3600)] = 300.0
    """Longest time for which a request waits for a slot, in seconds from its arrival; then the request gets 503. Range:
    above 0 to 1h. Default: Knative's revision timeout, 300s, which ends the wait there.
    """

    open_share_max: float = 0.75
    """Largest part of a revision's slots, at least one, for one address: for its requests with incomplete bodies,
    including gRPC streams, and for all its requests if it does not read responses.

    Further ones wait, and count as load. Complete requests are otherwise not bounded. 0 means no bound. Source: ours,
    75, above the utilization of 70 that revisions are scaled for.
    """

    unread_wait_max_s: float = 1.0
    """Longest time, in seconds, that a client reads nothing of a response above ``http.response_buffer_bytes_max``.

    After it the response is cut off, if others wait for a slot and the address has more slots than ``open_share_max``.
    gRPC calls and tunnels are exempt. 0 means never: only ``http.read_rate_min`` applies. Source: ours, 1s.
    """

    requests_per_address_max: Annotated[
        int, Knob(key="requests-per-address-max", unit=COUNT, low=0, high=1_000_000)
    ] = 10_000
    """Maximum number of concurrent requests and streams of one client address; further requests get 429. Behind a load
    balancer set http.trusted-proxies to count each client separately. 0 means no limit. Range: 0 to 1000000. Default:
    ours, half of the connections of an activator.
    """

    first_free_concurrency_max: int = 3
    """Largest containerConcurrency with the policy "first free slot by address", which keeps few pods busy.

    Above it, and with 0 always, pods take turns. Source: Knative, 3.
    """

    pod_tries_max: int = 8
    """Most pods that one request is sent to, if each fails before it receives the request; then the client gets 502.

    With the pauses of an ejected pod, 8 tries at a single pod take about 4 s. Source: ours, 8; Knative tries 15 times
    to connect.
    """

    eject_after_silence_s: float = 3.0
    """Silence in seconds after which a pod is ejected for a while: at least three of its requests have waited for this
    time, and other pods of the revision respond.

    Its repeatable requests go to other pods. If twice the revision's slowest response is longer, that applies. 0 means
    never. Source: ours, 3s; Envoy's outlier detection counts errors, and a stopped process produces none.
    """

    revision_wait_max_s: float = 5.0
    """Longest wait for a routed revision not yet known, in seconds, from its first request; then requests are rejected
    with 503. Source: ours, 5s: watches of two kinds differ by some milliseconds, seldom by more."""

    report_period_s: float = 1.0
    """Time between two reports to the autoscaler, in seconds. The autoscaler sums the reports of each second. Source:
    Knative's fixed period, 1s."""

    poke_pause_min_s: float = 0.05
    """Shortest time between two pokes of the autoscaler for one revision, in seconds. Source: ours, 50ms, about the
    time that a decision takes to become a pod."""

    flip_pause_first_s: float = 0.1
    """Pause before a second try to make a revision Active that is still in Reserve, in seconds; it doubles with each
    try. Source: ours, 100ms."""

    flip_pause_max_s: float = 5.0
    """Longest pause between two tries to make a revision Active, in seconds. Source: ours, 5s."""

    public_address: Annotated[str, Knob(key="public-address", unit=TEXT)] = "127.0.0.1:8080"
    """Address and port of the public listener. Default: ours, loopback only."""

    inner_address: Annotated[str, Knob(key="inner-address", unit=TEXT)] = "127.0.0.1:8081"
    """Address and port of the listener for cluster-local hosts.

    The listener must not be reachable from outside. Default: ours, loopback only.
    """

    secrets_of: Annotated[str, Knob(key="secrets-of", unit=TEXT, choices=(SECRETS_OF_PODS, SECRETS_OF_REVISIONS))] = (
        SECRETS_OF_PODS
    )
    """Scope of the secret that authenticates the activator to a queue-proxy: each pod has its own secret (pod), or all
    pods of a revision share a secret (revision). Pods of a Deployment need a shared secret, because they share a
    template. Activator and queue-proxies need the same value. Default: ours, pod, as `serving up` does; in a cluster
    revision.
    """

    pod_address_override: Annotated[str, Knob(key="pod-address-override", unit=TEXT)] = ""
    """For tests: two prefixes of addresses, such as "10.=127.". In the address of a pod, the activator replaces the
    first prefix by the second. Default: none.
    """

    probe_unready_pods: Annotated[bool, Knob(key="probe-unready-pods", unit=FLAG)] = True
    """Whether the activator probes unready pods while requests wait. A pod then gets requests once its queue-proxy
    responds, up to a second before a kubelet reports the pod ready. Default: Knative, true; `serving up` sets false,
    because its pods report readiness at once.
    """

    announced_pod_max_s: float = 5.0
    """How long an announced pod is used before an EndpointSlice lists it.

    It gets requests once a probe has proved its identity. 0 waits for slices. Without effect if `probe-unready-pods` is
    false. Source: ours, 5 s: a kubelet reports the address of a pod up to 2 s after its start.
    """

    stats_url: Annotated[str, Knob(key="stats-url", unit=TEXT)] = f"ws://127.0.0.1:{STATS_PORT}/stats"
    """Websocket URL of the autoscaler for statistics. Default: ours, the port of `serving up`."""

    metrics_address: Annotated[str, Knob(key="metrics-address", unit=TEXT)] = f"127.0.0.1:{ACTIVATOR_METRICS_PORT}"
    """Address and port of the metrics page. The page needs the query token. Default:
    ours, 127.0.0.1:6082; in a cluster :9090 is usual.
    """

    name: Annotated[str, Knob(key="name", unit=TEXT)] = "activator"
    """Unique name of this activator in reports to the autoscaler. Default: ours."""

    count: Annotated[int, Knob(key="count", unit=COUNT, low=1, high=64)] = 1
    """Number of activator processes on the same sockets of this machine. They share the slots of each pod. Range: 1 to
    64. Default: ours, 1; `serving up --activators` sets it.
    """

    index: Annotated[int, Knob(key="index", unit=COUNT, low=0, high=63)] = 0
    """Index of this activator process, from 0. Range: 0 to 63, below the count. Default: ours, 0; `serving up` sets it.
    """

    peer_folder: Annotated[str, Knob(key="peer-folder", unit=TEXT)] = ""
    """Folder of the sockets between the activator processes of this machine. Only the user of these processes may read
    the folder. The setting is required if count is above 1. Default: none; `serving up` sets it.
    """

    drain_lag_s: Annotated[float, Knob(key="drain-lag", unit=DURATION, low=0, high=600, live=True)] = 0.0
    """Time for which the activator still accepts requests after the signal to stop, in seconds, until senders notice
    the stop. Range: 0 to 10m. Default: ours, 0s, because `serving up` holds the sockets and refuses no connection;
    behind a load balancer its probe period, such as 5s.
    """

    drain_grace_s: Annotated[float, Knob(key="drain-grace", unit=DURATION, low=0, high=3600, live=True)] = 10.0
    """Time for requests to end after the signal to stop, in seconds. Then requests that wait for a pod get 503, and
    connections of requests in flight are closed. Range: 0 to 1h. Default: ours, 10s: new requests go to another
    activator, or wait at the socket for the next.
    """

    handover_grace_s: float = 300.0
    """Time that requests, websockets and streams have to end after another process has taken over (`serving up
    --reload`), in seconds; then they are cut. Source: ours, 300s, the longest wait for a pod and Knative's default
    timeout of a request, so that only longer streams are cut."""

    deny_by_default: Annotated[bool, Knob(key="deny-by-default", unit=FLAG, live=True)] = False
    """Whether cluster-local requests to services without serving.dev/allow-from get 403. Services behind a Gateway then
    need allow-from too; "*" permits all callers. Default: ours, false: every pod may call every service.
    """

    tell_revision: Annotated[bool, Knob(key="tell-revision", unit=FLAG, live=True)] = True
    """Whether responses name their revision in X-Serving-Revision. Default: ours, true; off hides it from clients."""

    tell_cold_start: Annotated[bool, Knob(key="tell-cold-start", unit=FLAG, live=True)] = True
    """Whether responses to requests that waited for a pod to start carry X-Serving-Cold-Start. Default: ours, true."""

    recorded_requests_max: int = 8_000
    """Requests of all revisions that are kept in memory for `serving requests` and the dashboard: failed ones, the
    slowest, and a sample; of one revision at most 140. Each takes 1 to 2 KiB. 0 keeps none. Source: ours, 8000."""

    record_queries: Annotated[bool, Knob(key="record-queries", unit=FLAG, live=True)] = False
    """Whether records of requests contain the query of the path. A query may contain secrets. Default: ours, false."""

    tell_timing: Annotated[bool, Knob(key="tell-timing", unit=FLAG, live=True)] = True
    """Whether responses have the header Server-Timing, with the milliseconds for which the request waited for a pod
    ("queue"), and then for the first byte of the pod's response ("upstream").

    Default: ours, true; browsers show it.
    """

    http_protocol: Annotated[
        str,
        Knob(
            key="http-protocol",
            legacy=("httpProtocol",),
            config_map="config-network",
            unit=_PROTOCOL,
            choices=("Enabled", REDIRECTED),
        ),
    ] = "Enabled"
    """Whether requests over plain HTTP to public hosts are served (Enabled), or redirected to https by a 301
    (Redirected). Paths below /.well-known/acme-challenge/ are never redirected.

    Redirected needs TLS at the activator, or tls.public-port if a load balancer terminates TLS. Default: Knative,
    Enabled.
    """

    http: HttpSettings = HttpSettings()
    """Limits of the HTTP engine."""

    tls: TlsSettings = TlsSettings()
    """TLS: its certificates, and how often they are read."""

    inner_tls: InnerTlsSettings = InnerTlsSettings()
    """TLS with queue-proxies and autoscalers."""

    trace_ratio: Annotated[float, Knob(key="trace-percentage", unit=PERCENT, low=0, high=1)] = 0.1
    """Percentage of requests without a traceparent that get spans, if otlp.endpoint is set. For requests with a
    traceparent the sampled flag decides. Range: 0 to 100 percent. Default: Knative's sample-rate, 10.
    """

    otlp: OtlpSettings = OtlpSettings()
    """Receiver of spans of requests and of the page's numbers."""

    def check(self) -> Iterator[Clash]:
        """Yield all contradictions between fields."""
        yield from self.tls.check()
        if self.index >= self.count:
            what = f"there are {self.count} activators, so that none has the index {self.index}"
            yield Clash(fields=("index", "count"), what=what, expected="an index below the count")
        if self.count > 1 and not self.peer_folder:
            what = f"{self.count} activators cannot find each other"
            yield Clash(fields=("peer_folder",), what=what, expected="a folder for their sockets")
        if self.http_protocol == REDIRECTED and not self.tls.is_on and not self.tls.public_port:
            yield Clash(
                fields=("http_protocol",),
                what="there is no TLS to redirect to",
                expected="certificates (tls.certificate-files, tls.folder or tls.secrets), or tls.public-port",
            )

    @property
    def queue_bytes_limit(self) -> int | None:
        """Bytes that may wait for one revision; None means no limit."""
        return self.queue_bytes_max or None
