"""Settings of the controller: defaults of revisions, hosts of routes, and garbage collection.

Source of keys, ranges and defaults: knative/serving 98e5ef90, ConfigMaps config-defaults, config-gc and config-network,
unless a field says otherwise. Our own settings are in config-controller.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.gotemplate import fill_template
from serving.core.model.ports import CONTROL_METRICS_PORT, INNER_PORT, PUBLIC_PORT, TLS_PORT
from serving.core.model.routehosts import HostRules
from serving.core.settings.innertls import InnerTlsSettings
from serving.core.settings.knativekeys import FEATURES
from serving.core.settings.knob import (
    ANY_KEY,
    BYTES,
    COUNT,
    DURATION,
    FLAG,
    TEXT,
    Clash,
    Knob,
    SettingsRecord,
    Unit,
    Value,
)
from serving.core.settings.otlp import OtlpSettings
from serving.core.settings.resources import RevisionResources
from serving.core.settings.selectors import SELECTORS, selected_names
from serving.core.settings.sidecar import SidecarSettings

DISABLED = -1
_DISABLED_TEXT = "disabled"
FROM_START = -1
_FROM_START_TEXT = "start-time"
_DEFAULTS = "config-defaults"
_DEPLOYMENT = "config-deployment"
_GC = "config-gc"
_NETWORK = "config-network"
# The host of an example, incomplete if the template uses annotations that the example lacks.
_HOST_PARTS = re.compile(r"[-a-z0-9.]+\Z")
_HOST = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")
_GATEWAY = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[a-z0-9]([-a-z0-9.]*[a-z0-9])?):[0-9]{1,5}\Z")
_SECURE_LEVELS = ("Disabled", "AllowRootBounded", "Enabled")
_FEATURE_STATES = ("disabled", "allowed", "enabled")

_TAG: Mapping[str, object] = {"Tag": "v2", "Name": "foo"}
_ROUTE: Mapping[str, object] = {
    "Name": "foo",
    "Namespace": "bar",
    "Domain": "baz.com",
    "Labels": dict[str, str](),
    "Annotations": dict[str, str](),
}

_TIMEOUT = Knob(key="", config_map=_DEFAULTS, unit=COUNT, low=0, high=3600, live=True)


def _or_word(unit: Unit, word: str) -> Unit:
    """Extend a unit by a word that is read as -1."""

    def read(text: str) -> Value:
        return -1 if text == word else unit.read(text)

    def read_plain(text: str) -> Value:
        return -1 if text == word else unit.read_plain(text)

    def write(value: float) -> str:
        return word if value == -1 else unit.write(value)

    return msgspec.structs.replace(unit, read=read, read_plain=read_plain, write=write)


def _read_rollout_duration(text: str) -> Value:
    """Parse a duration: Knative writes whole seconds without a unit, its documentation "380s"."""
    return float(text) if text.isdecimal() else DURATION.read(text)


def _template(example: Mapping[str, object]) -> Unit:
    """Parse a Go template of a host and fill it with an example, as Knative does."""

    def read(text: str) -> Value:
        host = fill_template(text, example)
        if not _HOST_PARTS.match(host):
            raise InvalidValue(text=text, expected=f'a template of a host; this one makes "{host}"')
        return text

    name = "Go template of a host with " + ", ".join(f"{{{{.{field}}}}}" for field in example)
    return Unit(name=name, plain="text", read=read, read_plain=read, write=str, explains=True)


def _read_gateway(text: str) -> Value:
    if text and not _GATEWAY.match(text):
        raise InvalidValue(text=text, expected="NAMESPACE/NAME of a Gateway, or nothing")
    return text


def _read_addresses(text: str) -> Value:
    if not all(_ADDRESS.match(address) for address in text.split(",") if text):
        raise InvalidValue(text=text, expected="HOST:PORT separated by commas, or nothing")
    return text


def _read_issuer(text: str) -> Value:
    import yaml  # noqa: PLC0415 - only an issuer needs it

    try:
        msgspec.convert(yaml.safe_load(text), _IssuerReference)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InvalidValue(text=text, expected="a mapping with kind and name of an issuer") from error
    return text


class _IssuerReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reference to a cert-manager issuer."""

    name: str
    kind: str = "ClusterIssuer"
    group: str = "cert-manager.io"


def _read_host(text: str) -> Value:
    if not _HOST.match(text):
        raise InvalidValue(text=text, expected="a host name")
    return text


def _read_word(text: str) -> Value:
    """Parse a word in any case, as Knative does."""
    return text.lower()


def _read_secure(text: str) -> Value:
    """Parse the level of secure-pod-defaults in any case, as Knative does."""
    return next((level for level in _SECURE_LEVELS if level.lower() == text.lower()), text)


_WORD = msgspec.structs.replace(TEXT, read=_read_word, read_plain=_read_word)
_SECURE = msgspec.structs.replace(TEXT, read=_read_secure, read_plain=_read_secure)
_DURATION_OR_DISABLED = _or_word(DURATION, _DISABLED_TEXT)
_COUNT_OR_DISABLED = _or_word(COUNT, _DISABLED_TEXT)
_DURATION_OR_START = _or_word(DURATION, _FROM_START_TEXT)
_HOST_NAME = msgspec.structs.replace(TEXT, name="host name", read=_read_host, read_plain=_read_host)
_GATEWAY_NAME = msgspec.structs.replace(
    TEXT, name="NAMESPACE/NAME of a Gateway, or nothing", read=_read_gateway, read_plain=_read_gateway
)
_ROLLOUT_DURATION = msgspec.structs.replace(DURATION, read=_read_rollout_duration)
_ISSUER = Unit(
    name="mapping with kind and name of an issuer", plain="text", read=_read_issuer, read_plain=_read_issuer, write=str
)
_ADDRESSES = msgspec.structs.replace(TEXT, name="list of HOST:PORT", read=_read_addresses, read_plain=_read_addresses)


def _timeout(key: str, low: int = 0) -> Knob:
    return msgspec.structs.replace(_TIMEOUT, key=key, low=low)


class ControllerSettings(SettingsRecord, frozen=True, kw_only=True):
    """All settings of the controller. Times are in seconds."""

    revision_timeout_s: Annotated[int, _timeout("revision-timeout-seconds", 1)] = 300
    """Default of a revision's timeoutSeconds: whole seconds from a request's arrival to the end of its response. Range:
    1 to 3600, at most max-revision-timeout-seconds. Default: Knative, 300.
    """

    max_revision_timeout_s: Annotated[int, _timeout("max-revision-timeout-seconds", 1)] = 3600
    """Upper bound of a revision's timeout, in whole seconds. Range: 1 to 3600. Default: ours, 3600, as in manifests
    of Cloud Run; Knative ships 600.
    """

    revision_response_start_timeout_s: Annotated[int, _timeout("revision-response-start-timeout-seconds")] = 300
    """Default of a revision's responseStartTimeoutSeconds: whole seconds from a request's arrival to the response's
    first byte. The default applies only if it is smaller than timeoutSeconds. 0 means no limit. Default: Knative, 300.
    """

    revision_idle_timeout_s: Annotated[int, _timeout("revision-idle-timeout-seconds")] = 0
    """Default of a revision's idleTimeoutSeconds: whole seconds without a byte of the response. 0 means no limit.
    Range: 0 to 3600. Default: Knative, 0.
    """

    revision_resources: RevisionResources = RevisionResources()
    """Requests and limits of containers that set none."""

    enable_service_links: Annotated[
        str,
        Knob(
            key="enable-service-links",
            config_map=_DEFAULTS,
            unit=_WORD,
            choices=("true", "false", "default"),
            live=True,
        ),
    ] = "false"
    """Default of a revision's enableServiceLinks; "default" is Kubernetes' default, true. Default: Knative, false."""

    container_concurrency: Annotated[
        int, Knob(key="container-concurrency", config_map=_DEFAULTS, unit=COUNT, low=0, high=1000, live=True)
    ] = 0
    """Concurrent requests per pod, for revisions without containerConcurrency. 0 means no limit: no request waits in
    the queue-proxy. Range: 0 to 1000. Default: Knative, 0.
    """

    container_name: Annotated[
        str, Knob(key="container-name-template", config_map=_DEFAULTS, unit=_HOST_NAME, live=True)
    ] = "user-container"
    """Default name of a container; if there are several containers, a number follows. Default: Knative, user-container.
    """

    init_container_name: Annotated[
        str, Knob(key="init-container-name-template", config_map=_DEFAULTS, unit=_HOST_NAME)
    ] = "init-container"
    """Default name of an init container; if there are several init containers, a number follows. Default: Knative,
    init-container.
    """

    add_capabilities: Annotated[
        str,
        Knob(
            key="kubernetes.containerspec-addcapabilities",
            config_map=FEATURES,
            unit=_WORD,
            choices=_FEATURE_STATES,
            live=True,
        ),
    ] = "disabled"
    """Whether the containers of revisions may add capabilities other than NET_BIND_SERVICE.

    Default: Knative, disabled.
    """

    host_path_volumes: Annotated[
        str,
        Knob(
            key="kubernetes.podspec-volumes-hostpath",
            config_map=FEATURES,
            unit=_WORD,
            choices=_FEATURE_STATES,
            live=True,
        ),
    ] = "disabled"
    """Whether revisions may mount folders of their node; only enabled allows it. Default: Knative, disabled."""

    secure_pod_defaults: Annotated[
        str,
        Knob(
            key="secure-pod-defaults",
            config_map=FEATURES,
            unit=_SECURE,
            choices=_SECURE_LEVELS,
            live=True,
        ),
    ] = "Disabled"
    """Default security context of containers. AllowRootBounded sets no privilege escalation, no capabilities and the
    seccomp profile of the runtime. Enabled also forbids root, as the restricted standard of Kubernetes requires.
    Default: Knative, Disabled, because most images run as root and would not start.
    """

    registries_skipping_tag_resolving: Annotated[
        str,
        Knob(
            key="registries-skipping-tag-resolving",
            legacy=("registriesSkippingTagResolving",),
            config_map=_DEPLOYMENT,
            unit=TEXT,
            live=True,
        ),
    ] = "kind.local,ko.local,dev.local,localhost"
    """Registries, separated by commas, whose tags are not resolved: nodes pull the tag. On a cluster, tags of all other
    registries are resolved to digests when a revision is created. Pull secrets need the component pull-secrets.
    Default: Knative, and localhost, as podman names images that are on nodes only.
    """

    digest_resolution_timeout_s: Annotated[
        float,
        Knob(
            key="digest-resolution-timeout",
            legacy=("digestResolutionTimeout",),
            config_map=_DEPLOYMENT,
            unit=DURATION,
            above=0,
            high=3600,
            live=True,
        ),
    ] = 10.0
    """Longest time for a registry's response about a digest, in seconds; then the revision is not ready, and the
    request is retried.

    Range: above 0, to 1h. Default: Knative, 10s.
    """

    pod_is_always_schedulable: Annotated[
        bool, Knob(key="pod-is-always-schedulable", config_map=_DEPLOYMENT, unit=FLAG, live=True)
    ] = False
    """Whether an unschedulable pod counts as starting, not as failed; for clusters that add nodes on demand.

    Default: Knative, false.
    """

    revision_url_template: Annotated[
        str, Knob(key="logging.revision-url-template", config_map="config-observability", unit=TEXT, live=True)
    ] = ""
    """Address of a revision's logs, shown as logUrl in the revision's status. ${REVISION_UID} is replaced by the
    revision's uid. Empty shows no address. Default: Knative, empty.
    """

    retain_since_create_time_s: Annotated[
        float,
        Knob(
            key="retain-since-create-time",
            config_map=_GC,
            unit=_DURATION_OR_DISABLED,
            low=0,
            also=(DISABLED,),
            live=True,
        ),
    ] = 48 * 3600.0
    """Age below which a revision without traffic is kept, in seconds since its creation. With "disabled" (-1) only
    retain-since-last-active-time applies. Range: from 0. Default: Knative, 48h.
    """

    retain_since_last_active_time_s: Annotated[
        float,
        Knob(
            key="retain-since-last-active-time",
            config_map=_GC,
            unit=_DURATION_OR_DISABLED,
            low=0,
            also=(DISABLED,),
            live=True,
        ),
    ] = 15 * 3600.0
    """Time for which a revision is kept after a route last named it, in seconds. With "disabled" (-1) only
    retain-since-create-time applies. If both settings are disabled, no revision is removed for its age. Range: from 0.
    Default: Knative, 15h.
    """

    min_non_active_revisions: Annotated[
        int, Knob(key="min-non-active-revisions", config_map=_GC, unit=COUNT, low=0, live=True)
    ] = 20
    """Number of revisions without traffic that each Configuration keeps at any age, for rollbacks. Range: from 0.
    Default: Knative, 20."""

    max_non_active_revisions: Annotated[
        int,
        Knob(
            key="max-non-active-revisions", config_map=_GC, unit=_COUNT_OR_DISABLED, low=0, also=(DISABLED,), live=True
        ),
    ] = 1000
    """Maximum number of revisions without traffic of one Configuration; the oldest beyond this number are removed at
    any age. "disabled" (-1) means no limit. Range: from 0, at least min-non-active-revisions. Default: Knative, 1000.
    """

    domain_template: Annotated[
        str,
        Knob(
            key="domain-template",
            legacy=("domainTemplate",),
            config_map=_NETWORK,
            unit=_template(_ROUTE),
            live=True,
        ),
    ] = "{{.Name}}.{{.Namespace}}.{{.Domain}}"
    """Host of a public route, as a Go template. {{.Name}} is the route's name, or for a tag the result of tag-template;
    {{index .Annotations "sub"}} is an annotation of the route. Without {{.Namespace}} two namespaces may claim the same
    host, and the older claim gets the host. A route with an invalid host is not ready. Default: Knative,
    {{.Name}}.{{.Namespace}}.{{.Domain}}.
    """

    tag_template: Annotated[
        str,
        Knob(key="tag-template", legacy=("tagTemplate",), config_map=_NETWORK, unit=_template(_TAG), live=True),
    ] = "{{.Tag}}-{{.Name}}"
    """Value of {{.Name}} in the host of a tag, as a Go template. Default: Knative, {{.Tag}}-{{.Name}}."""

    default_external_scheme: Annotated[
        str,
        Knob(
            key="default-external-scheme",
            legacy=("defaultExternalScheme",),
            config_map=_NETWORK,
            unit=_WORD,
            choices=("http", "https"),
            live=True,
        ),
    ] = "http"
    """Scheme of the URLs of public routes. https is for a load balancer that terminates TLS; https URLs have
    public-tls-port. Default: Knative, http.
    """

    external_domain_tls: Annotated[
        str,
        Knob(
            key="external-domain-tls",
            legacy=("autoTLS", "auto-tls"),
            config_map=_NETWORK,
            unit=_WORD,
            choices=("disabled", "enabled"),
        ),
    ] = "disabled"
    """Whether cert-manager issues a certificate for each public host of a route. The activators use the certificate,
    and the URL begins with https. The setting needs cert-manager, and the components cert-manager, tls and domain-tls.
    Default: Knative, disabled.
    """

    issuer: Annotated[str, Knob(key="issuerRef", config_map="config-certmanager", unit=_ISSUER, live=True)] = (
        "{kind: ClusterIssuer, name: knative-selfsigned-issuer}"
    )
    """Issuer of cert-manager for public hosts. Default: Knative, the ClusterIssuer knative-selfsigned-issuer."""

    cluster_local_domain_tls: Annotated[
        str,
        Knob(key="cluster-local-domain-tls", config_map=_NETWORK, unit=_WORD, choices=("disabled", "enabled")),
    ] = "disabled"
    """Whether cert-manager also issues certificates for cluster-local hosts. The inner listener then serves TLS in
    addition to plain HTTP, and addresses begin with https. The setting needs cert-manager, and the components
    cert-manager and domain-tls. Default: Knative, disabled.
    """

    cluster_local_issuer: Annotated[
        str, Knob(key="clusterLocalIssuerRef", config_map="config-certmanager", unit=_ISSUER, live=True)
    ] = "{kind: ClusterIssuer, name: knative-selfsigned-issuer}"
    """The issuer of cert-manager for cluster-local hosts.

    Default: Knative, the ClusterIssuer knative-selfsigned-issuer.
    """

    domains: Annotated[str, Knob(key=ANY_KEY, config_map="config-domain", unit=SELECTORS, live=True)] = ""
    """Each key is a domain of public routes. A key's value is empty for all routes, or a selector of labels such as
    `selector: {app: shop}`. If several selectors match a route, the most specific selector applies, then the first
    domain in alphabetical order. svc.cluster.local makes routes cluster-local. Default: Knative, none.
    """

    rollout_duration_s: Annotated[
        float,
        Knob(
            key="rollout-duration",
            legacy=("rolloutDuration",),
            config_map=_NETWORK,
            unit=_ROLLOUT_DURATION,
            low=0,
            whole=True,
            live=True,
        ),
    ] = 0.0
    """Shortest time in which the traffic of a configuration target moves to a new revision, in whole seconds: 1 percent
    first, then equal steps. The annotation serving.knative.dev/rollout-duration of a Service or Route overrides this
    setting. 0 moves all traffic immediately. Range: from 0. Default: Knative, 0.
    """

    settle_time_s: Annotated[
        float,
        Knob(key="settle-time", unit=_DURATION_OR_START, low=0, high=600, also=(FROM_START,), live=True),
    ] = FROM_START
    """Time for which a new revision must be ready, without a restart, before it gets the older revision's traffic.
    "start-time" (-1) is the revision's start time, limited to 1 to 10 s. If the new revision fails within a minute, the
    traffic returns to the older revision. 0 moves traffic immediately and never back, as Knative does. Range: 0 to 10m.
    Default: ours, start-time.
    """

    domain: Annotated[str, Knob(key="domain", unit=_HOST_NAME, live=True)] = "localhost"
    """Domain of public routes that get no domain from config-domain.

    Default: ours, localhost: every name below it is this machine.
    """

    cluster_domain: Annotated[str, Knob(key="cluster-domain", unit=_HOST_NAME, live=True)] = "cluster.local"
    """Domain of hosts that only the cluster-local listener serves: NAME.NAMESPACE.svc.DOMAIN. Default: Kubernetes,
    cluster.local."""

    public_port: Annotated[int, Knob(key="public-port", unit=COUNT, low=1, high=65535, live=True)] = PUBLIC_PORT
    """Port at which clients reach the public listener; 80 is left out of URLs. Range: 1 to 65535. Default: ours, 8080,
    that of ``serving up``."""

    inner_port: Annotated[int, Knob(key="inner-port", unit=COUNT, low=1, high=65535, live=True)] = INNER_PORT
    """Port at which clients reach the cluster-local listener; 80 is left out of URLs. Range: 1 to 65535. Default: ours,
    8081, that of ``serving up``."""

    public_tls_port: Annotated[int, Knob(key="public-tls-port", unit=COUNT, low=1, high=65535, live=True)] = TLS_PORT
    """Port at which clients reach the public listener over TLS; 443 is left out of URLs. Only a DomainMapping with a
    certificate has such a URL. Range: 1 to 65535. Default: ours, 8443, that of ``serving up``."""

    autocreate_cluster_domain_claims: Annotated[
        bool,
        Knob(
            key="autocreate-cluster-domain-claims",
            legacy=("autocreateClusterDomainClaims",),
            config_map=_NETWORK,
            unit=FLAG,
            live=True,
        ),
    ] = False
    """Whether the controller creates and deletes a ClusterDomainClaim for the host of each DomainMapping. If false, an
    administrator creates the claims. Default: Knative, false; ``serving up`` sets true, because one machine has one
    user.
    """

    public_services: Annotated[bool, Knob(key="public-services", unit=FLAG)] = False
    """Whether each revision and route has a Service with the same name, whose endpoints are activators or pods.

    The setting needs the Service activator-service in the system's namespace. Default: ours, off; ``serving up`` and
    the Deployment of the controller in config/ turn it on.
    """

    workload_namespaces: Annotated[
        str, Knob(key="workload-namespaces", unit=_WORD, choices=("labelled", "all"), live=True)
    ] = "labelled"
    """Namespaces whose ScaledWorkloads a cluster scales: those labelled serving.dev/scaled-workloads=enabled, or all.

    Default: ours, labelled.
    """

    eviction_free_ratio: float = 0.02
    """Free part of the state folder's disk below which pods of one machine are evicted, the longest idle first; 0
    evicts none.

    Source: ours, 2 %; a kubelet's is 10 % of a disk that it has for itself.
    """

    projected_bytes_max: Annotated[int, Knob(key="projected-volumes-max-size", unit=BYTES, low=0, live=True)] = (
        64 * 2**20
    )
    """Maximum size of files from ConfigMaps, Secrets, tokens and pod fields in one pod's volumes, on one machine. A pod
    that exceeds this size, or its ephemeral-storage limits, does not start. Range: from 0. Default: ours, 64Mi.
    """

    gone_logs_retention_s: Annotated[
        float, Knob(key="gone-logs-retention", unit=DURATION, low=0, high=366 * 86400, live=True)
    ] = 7 * 86400.0
    """Time for which the logs of a deleted pod are kept on one machine. Range: 0 to 8784h. Default: ours, 168h."""

    gone_logs_bytes_max: Annotated[int, Knob(key="gone-logs-max-size", unit=BYTES, low=0, live=True)] = 512 * 2**20
    """Maximum total size of the logs of deleted pods on one machine. Above this size the oldest logs are deleted.
    Range: from 0. Default: ours, 512Mi.
    """

    activator_pages: Annotated[str, Knob(key="activator-pages", unit=_ADDRESSES)] = ""
    """Metrics addresses of all activator processes, HOST:PORT separated by commas. Activators report the Routes that
    they serve, and a Route is Ready once all activators serve it. If empty, the controller uses the addresses of the
    Service activator-service. Default: ours, none; ``serving up`` sets it.
    """

    gateway: Annotated[str, Knob(key="gateway", unit=_GATEWAY_NAME)] = ""
    """Gateway of the Gateway API (gateway.networking.k8s.io/v1), as NAMESPACE/NAME. Each public route and tag gets an
    HTTPRoute with its traffic weights for this Gateway. The setting needs public-services, and the rights of the
    component gateway in config/. Empty means no Gateway. Default: ours, none.
    """

    metrics_address: Annotated[str, Knob(key="metrics-address", unit=TEXT)] = f"127.0.0.1:{CONTROL_METRICS_PORT}"
    """Address and port of the metrics page. The page needs the query token. Default:
    ours, 127.0.0.1:6083; in a cluster :9090 is usual.
    """

    workers: int = 8
    """Fewest resources reconciled in parallel; a resource is never reconciled twice at a time. Source: ours, 8."""

    workers_max: int = 64
    """Most resources reconciled in parallel while the API server does not slow down.

    Source: ours, 64: at 200 ms a call, 8 workers make 40 writes a second.
    """

    count_period_s: float = 1.0
    """Shortest time between two writes of a revision's status that change only its number of pods, in seconds. 0: each
    change is written.

    Source: ours, 1s, so that a thousand starting pods cause few writes.
    """

    resync_period_s: float = 600.0
    """Time after which every Configuration is reconciled without a change, in seconds, to collect old revisions.

    Source: ours, 10m.
    """

    retry_delay_max_s: float = 30.0
    """Longest wait before a resource that failed is tried again, in seconds; the wait doubles from a few milliseconds.
    Source: ours, 30s."""

    sidecar_enabled: Annotated[bool, Knob(key="sidecar.enabled", unit=FLAG)] = False
    """Whether revisions' pods get the queue-proxy as a container.

    The setting is false where the pod runtime starts the queue-proxy, as with ``serving up``. Default: ours, false;
    ``config/`` turns it on.
    """

    sidecar: SidecarSettings = SidecarSettings()
    """The queue-proxy as a container of its pods."""

    inner_tls: InnerTlsSettings = InnerTlsSettings()
    """TLS with activators, and what queue-proxies are started with."""

    otlp: OtlpSettings = OtlpSettings()
    """Receiver of the page's numbers."""

    @property
    def host_rules(self) -> HostRules:
        """The rules for hosts of routes."""
        return HostRules(
            domain=self.domain,
            cluster_domain=self.cluster_domain,
            domain_template=self.domain_template,
            tag_template=self.tag_template,
            domains=selected_names(self.domains),
            has_certificates=self.external_domain_tls == "enabled",
            has_local_certificates=self.cluster_local_domain_tls == "enabled",
        )

    @property
    def wants_certificates(self) -> bool:
        """Whether cert-manager issues certificates of hosts."""
        return self.host_rules.has_certificates or self.host_rules.has_local_certificates

    @property
    def skipped_registries(self) -> frozenset[str]:
        """The registries in ``registries_skipping_tag_resolving``."""
        return frozenset(name.strip() for name in self.registries_skipping_tag_resolving.split(",") if name.strip())

    @property
    def activator_page_addresses(self) -> tuple[str, ...]:
        """The addresses in ``activator_pages``."""
        return tuple(self.activator_pages.split(",")) if self.activator_pages else ()

    def check(self) -> Iterator[Clash]:
        """Yield contradictions between fields: timeouts, kept revisions, or a Gateway without Services."""
        longest = self.max_revision_timeout_s
        for name in ("revision_timeout_s", "revision_response_start_timeout_s", "revision_idle_timeout_s"):
            if getattr(self, name) > longest:
                yield Clash(
                    fields=(name, "max_revision_timeout_s"),
                    what=f"{getattr(self, name)} is above max-revision-timeout-seconds {longest}",
                    expected=f"at most {longest}",
                )
        if self.workers > self.workers_max:
            yield Clash(
                fields=("workers", "workers_max"),
                what=f"workers {self.workers} is above workers-max {self.workers_max}",
                expected=f"at most {self.workers_max}",
            )
        if self.gateway and not self.public_services:
            yield Clash(
                fields=("gateway", "public_services"),
                what="gateway is set and public-services is false",
                expected="public-services true: weights are of the Services of revisions",
            )
        most = self.max_non_active_revisions
        if most != DISABLED and self.min_non_active_revisions > most:
            yield Clash(
                fields=("min_non_active_revisions", "max_non_active_revisions"),
                what=f"min-non-active-revisions {self.min_non_active_revisions} is above max-non-active-revisions {most}",
                expected=f"at most {most}",
            )
