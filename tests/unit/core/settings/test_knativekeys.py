"""Every key of Knative's ConfigMaps is read, or reported with the reason why it has no effect.

Keys and values: the blocks ``_example`` of knative/serving 98e5ef90 (config/core/configmaps) and knative.dev/networking
17b28c62 (config/config-network.yaml), and further keys that their code reads (pkg/deployment, pkg/leaderelection,
networking/pkg/config).
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from serving.core.settings.daemons import DAEMONS
from serving.core.settings.knativekeys import FEATURES, WITHOUT_EFFECT
from serving.core.settings.live import LiveSettings, config_map_of

_PAGE = Path(__file__).resolve().parents[4] / "docs" / "settings.md"
_ISSUER = "kind: ClusterIssuer\nname: letsencrypt-issuer\n"
_POD_FIELDS = [
    "affinity",
    "topologyspreadconstraints",
    "hostaliases",
    "nodeselector",
    "tolerations",
    "fieldref",
    "runtimeclassname",
    "dnspolicy",
    "dnsconfig",
    "securitycontext",
    "shareprocessnamespace",
    "hostipc",
    "hostpid",
    "hostnetwork",
    "priorityclassname",
    "schedulername",
    "volumes-image",
    "volumes-hostpath",
    "volumes-ephemeral",
    "volumes-csi",
    "init-containers",
    "persistent-volume-claim",
    "persistent-volume-write",
    "volumes-mount-propagation",
]
EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "config-autoscaler": {
        "container-concurrency-target-percentage": "70",
        "container-concurrency-target-default": "100",
        "requests-per-second-target-default": "200",
        "target-burst-capacity": "211",
        "stable-window": "60s",
        "panic-window-percentage": "10.0",
        "panic-threshold-percentage": "200.0",
        "max-scale-up-rate": "1000.0",
        "max-scale-down-rate": "2.0",
        "enable-scale-to-zero": "true",
        "scale-to-zero-grace-period": "30s",
        "scale-to-zero-pod-retention-period": "0s",
        "pod-autoscaler-class": "kpa.autoscaling.knative.dev",
        "activator-capacity": "100.0",
        "initial-scale": "1",
        "allow-zero-initial-scale": "false",
        "min-scale": "0",
        "max-scale": "0",
        "scale-down-delay": "0s",
        "max-scale-limit": "0",
    },
    "config-certmanager": {
        "issuerRef": _ISSUER,
        "clusterLocalIssuerRef": _ISSUER,
        "systemInternalIssuerRef": _ISSUER,
    },
    "config-defaults": {
        "revision-timeout-seconds": "300",
        "max-revision-timeout-seconds": "600",
        "revision-response-start-timeout-seconds": "300",
        "revision-idle-timeout-seconds": "0",
        "revision-cpu-request": "400m",
        "revision-memory-request": "100M",
        "revision-ephemeral-storage-request": "500M",
        "revision-cpu-limit": "1000m",
        "revision-memory-limit": "200M",
        "revision-ephemeral-storage-limit": "750M",
        "container-name-template": "user-container",
        "init-container-name-template": "init-container",
        "container-concurrency": "0",
        "container-concurrency-max-limit": "1000",
        "allow-container-concurrency-zero": "true",
        "enable-service-links": "false",
    },
    "config-deployment": {
        "queue-sidecar-image": "ko://knative.dev/serving/cmd/queue",
        "registries-skipping-tag-resolving": "kind.local,ko.local,dev.local",
        "digest-resolution-timeout": "10s",
        "progress-deadline": "600s",
        "queue-sidecar-cpu-request": "25m",
        "queue-sidecar-cpu-limit": "1000m",
        "queue-sidecar-memory-request": "400Mi",
        "queue-sidecar-memory-limit": "800Mi",
        "queue-sidecar-ephemeral-storage-request": "512Mi",
        "queue-sidecar-ephemeral-storage-limit": "1024Mi",
        "queue-sidecar-token-audiences": "",
        "queue-sidecar-rootca": "",
        "queue-sidecar-tls-min-version": "",
        "queue-sidecar-tls-max-version": "",
        "queue-sidecar-tls-cipher-suites": "",
        "queue-sidecar-tls-curve-preferences": "",
        "runtime-class-name": "kata:\n  selector:\n    use-kata: please\n",
        "pod-is-always-schedulable": "false",
        "default-affinity-type": "prefer-spread-revision-over-nodes",
        "queueSidecarImage": "queue",
        "progressDeadline": "600s",
        "digestResolutionTimeout": "10s",
        "registriesSkippingTagResolving": "kind.local",
        "queueSidecarCPURequest": "25m",
        "queueSidecarMemoryRequest": "50Mi",
        "queueSidecarEphemeralStorageRequest": "100Mi",
        "queueSidecarCPULimit": "100m",
        "queueSidecarMemoryLimit": "100Mi",
        "queueSidecarEphemeralStorageLimit": "200Mi",
    },
    "config-domain": {
        "svc.cluster.local": "selector:\n  app: secret\n",
        "example.com": "",
        "example.org": "selector:\n  app: nonprofit\n",
    },
    FEATURES: {
        **{f"kubernetes.podspec-{name}": "disabled" for name in _POD_FIELDS},
        "kubernetes.podspec-volumes-emptydir": "enabled",
        "kubernetes.containerspec-addcapabilities": "disabled",
        "secure-pod-defaults": "disabled",
        "multi-container": "enabled",
        "multi-container-probing": "disabled",
        "tag-header-based-routing": "disabled",
        "autodetect-http2": "disabled",
        "queueproxy.mount-podinfo": "disabled",
        "queueproxy.resource-defaults": "disabled",
    },
    "config-gc": {
        "retain-since-create-time": "48h",
        "retain-since-last-active-time": "15h",
        "min-non-active-revisions": "20",
        "max-non-active-revisions": "1000",
    },
    "config-leader-election": {
        "lease-duration": "60s",
        "renew-deadline": "40s",
        "retry-period": "10s",
        "buckets": "1",
        "leaseDuration": "60s",
        "renewDeadline": "40s",
        "retryPeriod": "10s",
        "map-lease-prefix.reconciler": "serving",
    },
    "config-logging": {
        "zap-logger-config": '{"level": "info"}',
        **{f"loglevel.{name}": "info" for name in ("controller", "autoscaler", "queueproxy", "webhook", "activator")},
        "loglevel.hpaautoscaler": "info",
        **{f"loglevel.net-{name}-controller": "info" for name in ("istio", "contour", "kourier", "gateway-api")},
    },
    "config-network": {
        "ingress-class": "istio.ingress.networking.knative.dev",
        "certificate-class": "cert-manager.certificate.networking.knative.dev",
        "namespace-wildcard-cert-selector": "",
        "domain-template": "{{.Name}}.{{.Namespace}}.{{.Domain}}",
        "tag-template": "{{.Tag}}-{{.Name}}",
        "auto-tls": "Disabled",
        "external-domain-tls": "Disabled",
        "cluster-local-domain-tls": "Disabled",
        "internal-encryption": "false",
        "system-internal-tls": "Disabled",
        "http-protocol": "Enabled",
        "rollout-duration": "0",
        "autocreate-cluster-domain-claims": "false",
        "enable-mesh-pod-addressability": "false",
        "mesh-compatibility-mode": "auto",
        "default-external-scheme": "http",
        "ingress.class": "istio.ingress.networking.knative.dev",
        "certificate.class": "cert-manager.certificate.networking.knative.dev",
        "domainTemplate": "{{.Name}}.{{.Domain}}",
        "tagTemplate": "{{.Name}}-{{.Tag}}",
        "rolloutDuration": "10",
        "autocreateClusterDomainClaims": "true",
        "defaultExternalScheme": "https",
        "autoTLS": "Disabled",
        "httpProtocol": "Redirected",
    },
    "config-observability": {
        "logging.enable-var-log-collection": "false",
        "logging.revision-url-template": "http://logging.example.com/?revisionUID=${REVISION_UID}",
        "logging.request-log-template": '{"traceId": "{{.TraceID}}"}',
        "logging.enable-request-log": "false",
        "logging.enable-probe-request-log": "false",
        "metrics-protocol": "http/protobuf",
        "metrics-endpoint": "http://example.com/v1/traces",
        "metrics-export-interval": "60s",
        "request-metrics-protocol": "http/protobuf",
        "request-metrics-endpoint": "http://prometheus.observability:9090/api/v1/otlp/v1/metrics",
        "request-metrics-export-interval": "60s",
        "runtime-profiling": "enabled",
        "runtime-export-interval": "60s",
        "tracing-protocol": "http/protobuf",
        "tracing-endpoint": "http://jaeger-collector.observability:4318/v1/traces",
        "tracing-sampling-rate": "1",
    },
    "config-tracing": {"backend": "none", "zipkin-endpoint": "http://zipkin", "sample-rate": "0.1"},
}


def reported(name: str, data: Mapping[str, str]) -> list[str]:
    """The unknown keys that daemons report for a ConfigMap; at least one daemon reads it, and none rejects it."""
    problems: dict[str, None] = {}
    readers = 0
    for daemon in DAEMONS:
        applied = LiveSettings(daemon, registry=DAEMONS, environment={}).update(config_map_of(name, data))
        if applied is not None:
            readers += 1
            assert not applied.problems
            problems |= dict.fromkeys(str(problem) for problem in applied.unknown)
    assert readers
    return list(problems)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_knative_key_is_read_or_reported_with_reason(name: str) -> None:
    assert [problem for problem in reported(name, EXAMPLES[name]) if " has no effect: " not in problem] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_settings_page_lists_each_key_without_effect(name: str) -> None:
    page = _PAGE.read_text()
    for key, reason in WITHOUT_EFFECT.get(name, {}).items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"|{name}|") and f"`{key}`" in line]
        assert reason.why in row


def test_value_equal_to_fixed_behaviour_is_accepted_in_any_case() -> None:
    assert reported("config-network", {"mesh-compatibility-mode": "Auto"}) == []
    assert (
        reported(FEATURES, {"kubernetes.podspec-affinity": "Allowed", "kubernetes.podspec-hostpid": "disabled"}) == []
    )
    (problem,) = reported("config-network", {"mesh-compatibility-mode": "enabled"})
    assert problem == (
        "ConfigMap config-network: mesh-compatibility-mode has no effect: the daemons connect to the addresses of "
        "pods; expected auto or disabled"
    )


def test_key_that_is_not_from_knative_is_unknown() -> None:
    (problem,) = reported("config-logging", {"level": "info"})
    assert "config-logging has no key level" in problem


def test_present_key_overrides_former_key() -> None:
    for data, scheme in (
        ({"defaultExternalScheme": "https"}, "https"),
        ({"defaultExternalScheme": "https", "default-external-scheme": "http"}, "http"),
        ({"default-external-scheme": "http", "defaultExternalScheme": "https"}, "http"),
    ):
        live = LiveSettings(
            next(daemon for daemon in DAEMONS if daemon.name == "controller"), registry=DAEMONS, environment={}
        )
        live.update(config_map_of("config-network", data))
        assert live.settings.default_external_scheme == scheme  # type: ignore[attr-defined]
