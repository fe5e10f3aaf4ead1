"""Keys of Knative's ConfigMaps that have no effect here, each with the reason.

A value that requests the existing behaviour is accepted; any other value is a problem, which the controller reports as
an Event. ``*`` at the end of a key stands for any end. Source: knative/serving 98e5ef90 and knative.dev/networking
17b28c62, with the keys that their code still reads.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

FEATURES = "config-features"


class WithoutEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A Knative key that has no effect here: the reason, and the accepted values in lower case."""

    why: str
    fulfilled: tuple[str, ...] = ()


_ON = ("enabled", "allowed")
_OFF = ("disabled", "false", "")
_POD_FIELDS = (
    *("affinity", "dnsconfig", "dnspolicy", "fieldref", "hostaliases", "init-containers", "nodeselector"),
    *("persistent-volume-claim", "persistent-volume-write", "priorityclassname", "runtimeclassname", "schedulername"),
    *("securitycontext", "shareprocessnamespace", "tolerations", "topologyspreadconstraints", "volumes-csi"),
    *("volumes-emptydir", "volumes-ephemeral", "volumes-mount-propagation"),
)
_ALWAYS = WithoutEffect(why="the field is always allowed", fulfilled=_ON)
_NEVER = WithoutEffect(why="the field is always refused", fulfilled=_OFF)
_OWN_SIDECAR = WithoutEffect(why="the key configures extensions of Knative's queue-proxy image", fulfilled=_OFF)
_OTLP = "the settings `otlp` send metrics and spans"
_OWN_INGRESS = "the activator is the only ingress"
_LOG = WithoutEffect(why="each daemon logs JSON at one level", fulfilled=("info",))

WITHOUT_EFFECT: Mapping[str, Mapping[str, WithoutEffect]] = MappingProxyType(
    {
        FEATURES: {
            **{f"kubernetes.podspec-{name}": _ALWAYS for name in _POD_FIELDS},
            **{f"kubernetes.podspec-{name}": _NEVER for name in ("hostipc", "hostnetwork", "hostpid", "volumes-image")},
            "multi-container": WithoutEffect(why="pods may always have several containers", fulfilled=_ON),
            "multi-container-probing": WithoutEffect(why="each container may always have probes", fulfilled=_ON),
            "tag-header-based-routing": WithoutEffect(
                why="the activator always routes by the header Knative-Serving-Tag", fulfilled=_ON
            ),
            "autodetect-http2": WithoutEffect(why="an app with HTTP/2 needs a port named h2c", fulfilled=_OFF),
            "queueproxy.mount-podinfo": _OWN_SIDECAR,
            "queueproxy.resource-defaults": WithoutEffect(
                why="the queue-proxy always has default resources", fulfilled=_OFF
            ),
        },
        "config-defaults": {
            "container-concurrency-max-limit": WithoutEffect(
                why="the definitions allow a containerConcurrency of 0 to 1000", fulfilled=("1000",)
            ),
            "allow-container-concurrency-zero": WithoutEffect(
                why="a containerConcurrency of 0 is always allowed", fulfilled=("true",)
            ),
        },
        "config-deployment": {
            "default-affinity-type": WithoutEffect(
                why="the scheduler of Kubernetes spreads the pods of a Deployment", fulfilled=("none",)
            ),
            "queue-sidecar-token-audiences": _OWN_SIDECAR,
            "queue-sidecar-rootca": _OWN_SIDECAR,
            "queue-sidecar-tls-*": WithoutEffect(
                why="queue-proxies speak TLS 1.3 with the ciphers of OpenSSL", fulfilled=("", "1.3")
            ),
        },
        "config-leader-election": {
            "map-lease-prefix.*": WithoutEffect(why="a daemon has one lease, named after the daemon"),
        },
        "config-network": {
            "ingress-class": WithoutEffect(why=_OWN_INGRESS),
            "ingress.class": WithoutEffect(why=_OWN_INGRESS),
            "certificate-class": WithoutEffect(
                why="cert-manager is the only issuer", fulfilled=("cert-manager.certificate.networking.knative.dev",)
            ),
            "certificate.class": WithoutEffect(
                why="cert-manager is the only issuer", fulfilled=("cert-manager.certificate.networking.knative.dev",)
            ),
            "namespace-wildcard-cert-selector": WithoutEffect(
                why="a Secret in tls.secrets may have a wildcard certificate", fulfilled=("",)
            ),
            "enable-mesh-pod-addressability": WithoutEffect(
                why="the daemons connect to the addresses of pods", fulfilled=("false",)
            ),
            "mesh-compatibility-mode": WithoutEffect(
                why="the daemons connect to the addresses of pods", fulfilled=("auto", "disabled")
            ),
        },
        "config-observability": {
            "logging.enable-var-log-collection": WithoutEffect(
                why="logs go to stdout and stderr", fulfilled=("false",)
            ),
            "metrics-*": WithoutEffect(
                why=f"each daemon always has a metrics page; {_OTLP}", fulfilled=("prometheus",)
            ),
            "request-metrics-*": WithoutEffect(
                why="each queue-proxy has a metrics page and sends no metrics", fulfilled=("prometheus",)
            ),
            "tracing-*": WithoutEffect(why=_OTLP, fulfilled=("none",)),
            "runtime-*": WithoutEffect(why="daemons have no profiler", fulfilled=_OFF),
        },
        "config-certmanager": {
            "systemInternalIssuerRef": WithoutEffect(why="the controller issues the certificates of inner TLS"),
        },
        "config-logging": {"zap-logger-config": _LOG, "loglevel.*": _LOG},
        "config-tracing": {"*": WithoutEffect(why=f"Knative no longer reads these keys; {_OTLP}")},
    }
)


def without_effect(config_map: str, key: str) -> WithoutEffect | None:
    """Why a Knative key has no effect here; None for any other key."""
    known = WITHOUT_EFFECT.get(config_map, {})
    ends = (entry for name, entry in known.items() if name.endswith("*") and key.startswith(name[:-1]))
    return known.get(key) or next(ends, None)
