"""Settings of the queue-proxy sidecar: its image, its resources, its autoscaler.

Source of keys in config-deployment: knative/serving 98e5ef90, pkg/deployment. On one machine the kubelet puts a
queue-proxy in front of each pod, and the template has none.
"""

from typing import Annotated

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.settings.knob import COUNT, TEXT, Knob, Unit, Value
from serving.core.settings.resources import CPU, STORAGE
from serving.core.settings.selectors import SELECTORS

_DEPLOYMENT = "config-deployment"
# The shortest token lifetime that Kubernetes allows.
_TOKEN_MIN_S = 600


def _read_audience(text: str) -> Value:
    if any(letter.isspace() for letter in text):
        raise InvalidValue(text=text, expected="a word, or nothing")
    return text


_AUDIENCE = Unit(name="word, or nothing", plain="text", read=_read_audience, read_plain=_read_audience, write=str)


def _knob(key: str, unit: Unit, legacy: str) -> Knob:
    return Knob(key=f"queue-sidecar-{key}", config_map=_DEPLOYMENT, unit=unit, legacy=(legacy,), live=True)


class SidecarSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the queue-proxy sidecar of pods in a cluster.

    A change applies to new revisions only; other revisions keep their pods.
    """

    image: Annotated[str, _knob("image", TEXT, "queueSidecarImage")] = ""
    """Image of the queue-proxy. Empty means the image of the controller's pod. Default: ours, empty."""

    cpu_request: Annotated[str, _knob("cpu-request", CPU, "queueSidecarCPURequest")] = "25m"
    """Cpu request of each queue-proxy. Default: Knative, 25m."""

    cpu_limit: Annotated[str, _knob("cpu-limit", CPU, "queueSidecarCPULimit")] = ""
    """Cpu limit of each queue-proxy. Default: Knative, empty: a limit delays requests."""

    memory_request: Annotated[str, _knob("memory-request", STORAGE, "queueSidecarMemoryRequest")] = "64Mi"
    """Memory request of each queue-proxy. Default: ours, 64Mi, a Python process with some hundred requests; Knative
    asks for none.
    """

    memory_limit: Annotated[str, _knob("memory-limit", STORAGE, "queueSidecarMemoryLimit")] = ""
    """Memory limit of each queue-proxy. Default: Knative, empty."""

    storage_request: Annotated[
        str, _knob("ephemeral-storage-request", STORAGE, "queueSidecarEphemeralStorageRequest")
    ] = ""
    """Disk request of each queue-proxy, for its log. Default: Knative, empty."""

    storage_limit: Annotated[str, _knob("ephemeral-storage-limit", STORAGE, "queueSidecarEphemeralStorageLimit")] = ""
    """Disk limit of each queue-proxy. Default: Knative, empty."""

    runtime_classes: Annotated[
        str, Knob(key="runtime-class-name", config_map=_DEPLOYMENT, unit=SELECTORS, live=True)
    ] = ""
    """RuntimeClasses of pods on a cluster, each for all revisions or with a selector of labels. A revision that names
    no RuntimeClass gets the class with the most specific matching selector. Default: Knative, empty.
    """

    stats_url: Annotated[str, Knob(key="stats-url", unit=TEXT, live=True)] = ""
    """Websocket of the autoscaler to which queue-proxies report their load. Empty means the Service ``autoscaler`` of
    the controller's own namespace, at port 6081. Default: ours, empty.
    """

    stats_audience: Annotated[str, Knob(key="stats-audience", unit=_AUDIENCE, live=True)] = ""
    """Audience of the service account tokens by which queue-proxies authenticate; the autoscaler's stats-audience must
    be the same. If empty, each queue-proxy gets its token in an environment variable; the token is derived from the
    cluster key. Default: ours, empty.
    """

    token_expiration_s: Annotated[
        int, Knob(key="token-expiration-seconds", unit=COUNT, low=_TOKEN_MIN_S, high=86400, live=True)
    ] = 3600
    """Lifetime of a queue-proxy's service account token, in whole seconds. Range: 600 to 86400. Default: Kubernetes,
    3600.
    """
