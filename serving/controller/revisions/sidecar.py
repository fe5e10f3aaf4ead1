"""Adds the queue-proxy to a revision's pods in a cluster: a container, its volume, and changes to other containers.

Input: a revision with its defaults filled in, the pod's spec without a queue-proxy, and a ``Sidecar`` with settings,
image and secrets. Output: the spec with the queue-proxy. Follows knative/serving 98e5ef90,
pkg/reconciler/revision/resources/queue.go, with these differences:

- One port, 8012, accepts both HTTP/1.1 and HTTP/2. The kubelet uses 8022 only.
- The response to a kubelet's readiness probe waits until the app is ready. In Knative the probe fails and is repeated a
  second later.
- The queue-proxy is the first container, because the kubelet starts containers in order. An annotation makes the app
  kubectl's default container.
- The queue-proxy mounts no volume, and a pod gets an account's token only if its service names the account: the kubelet
  delays pods with volumes by 300 ms. With ``stats_audience`` the token for stats is in a volume, and the kubelet renews
  it.

A revision may request the queue-proxy in its app's process (``serving.asgi``). Then the serving container gets the
environment, ports and readiness probe of the queue-proxy, and no container is added.

All other parts of the spec stay unchanged.
"""

from collections.abc import Callable, Sequence

import msgspec

from serving.core.model.knative import (
    APP_PROBE,
    GUARDED_VARIABLE,
    QUEUE_PROXY,
    QUEUE_PROXY_ANNOTATION,
    REVISION_LABEL,
    QueueProxyPlace,
)
from serving.core.model.objects import (
    Object,
    annotations_of,
    labels_of,
    name_of,
    namespace_of,
    nested,
    runs_in_queue_proxy,
    tcp_ports_of,
    uid_of,
)
from serving.core.scaling.resolve import resolve_annotations
from serving.core.scaling.spec import dormant_variables
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.innertls import DISABLED, ENABLED, InnerTlsSettings
from serving.core.settings.queueproxy import (
    INNER_TLS_VARIABLE,
    QueueProxySettings,
    changed_variables,
    load_variables,
    tcp_variables,
    variables_of,
)
from serving.core.settings.sidecar import SidecarSettings

# The queue-proxy's ports for requests and for administration.
QUEUE_PORT = 8012
ADMIN_PORT = 8022
_VOLUME = "serving-stats-token"
_TOKEN_FOLDER = "/var/run/secrets/serving"  # noqa: S105 - where it is, not what
_TOKEN_FILE = "token"  # noqa: S105 - as above
_AUTHORITY_VARIABLE = "SERVING_POD_AUTHORITY"
_SECRET_VARIABLE = "SERVING_POD_SECRET"  # noqa: S105 - its name
_MOUNT = {"name": _VOLUME, "mountPath": _TOKEN_FOLDER, "readOnly": True}
# Timeout of the kubelet's probe, and how long its response waits for the app, in seconds.
_READY_TIMEOUT_S = 10
_READY_WAIT_S = 8
# Time for the app to exit after the queue-proxy has drained, in seconds.
_APP_END_S = 5
# The user in the image (Containerfile).
_NONROOT_UID = 65532
_READINESS = {
    "httpGet": {"path": f"/readyz?wait={_READY_WAIT_S}", "port": ADMIN_PORT},
    "periodSeconds": 1,
    "timeoutSeconds": _READY_TIMEOUT_S,
    "failureThreshold": 1,
}
_ADMIN = {"name": "http-queueadm", "containerPort": ADMIN_PORT, "protocol": "TCP"}
_PROBES = ("livenessProbe", "startupProbe", "readinessProbe")
_HANDLERS = ("tcpSocket", "httpGet", "grpc")


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration shared by all queue-proxies.

    ``image`` and ``stats_url`` are used if ``settings`` have none. ``secret_of`` derives the secret of a revision's
    pods from namespace and uid. ``token_of`` derives the token for their stats from namespace and name. ``proxy`` are
    the settings of queue-proxies, which a revision may override. ``inner_tls`` is the mode when this controller
    started. ``authority`` is the public certificate by which queue-proxies identify daemons.
    """

    settings: SidecarSettings
    image: str
    stats_url: str
    secret_of: Callable[[str, str], str]
    token_of: Callable[[str, str], str]
    proxy: QueueProxySettings = QueueProxySettings()
    inner_tls: InnerTlsSettings = InnerTlsSettings(mode=DISABLED)
    authority: str = ""


def grace_s(revision: Object, sidecar: Sidecar) -> int:
    """A pod's termination grace period in seconds: drain lag, longest request, and 5 s for the exit of the app.

    Example: timeoutSeconds 300 and a drain lag of 5 s give 310.
    """
    return _drain_s(revision, sidecar) + _APP_END_S


def with_sidecar(spec: Object, revision: Object, sidecar: Sidecar, *, is_guarded: bool) -> Object:
    """The pod's spec with a queue-proxy. The container with ports receives the requests."""
    serving = next(container for container in spec["containers"] if container.get("ports"))
    secret = sidecar.secret_of(namespace_of(revision), uid_of(revision))
    is_inside = annotations_of(revision).get(QUEUE_PROXY_ANNOTATION) == QueueProxyPlace.IN_PROCESS
    proxy = (_inside if is_inside else _queue_proxy)(revision, serving, sidecar, secret=secret)
    if is_guarded:
        proxy["env"] = [*proxy["env"], {"name": GUARDED_VARIABLE, "value": "true"}]
    volumes = [*spec.get("volumes", ()), *([_volume(sidecar.settings)] if sidecar.settings.stats_audience else ())]
    return {
        **spec,
        "automountServiceAccountToken": spec.get("automountServiceAccountToken", "serviceAccountName" in spec),
        "containers": [
            proxy,
            *(
                _beside(container, secret=secret)
                for container in spec["containers"]
                if not (is_inside and container is serving)
            ),
        ],
        **({"volumes": volumes} if volumes else {}),
        "terminationGracePeriodSeconds": grace_s(revision, sidecar),
    }


def proxy_container(deployment: Object) -> Object:
    """The container that runs the queue-proxy in a Deployment's pods (it may be the app's); {} if none does."""
    containers: Sequence[Object] = nested(deployment, "spec", "template", "spec", "containers") or ()
    inside = (
        container
        for container in containers
        if any(variable["name"] == _SECRET_VARIABLE for variable in container.get("env") or ())
    )
    return next((container for container in containers if container["name"] == QUEUE_PROXY), next(inside, {}))


def inner_tls_variables(deployment: Object, sidecar: Sidecar) -> list[Object]:
    """The patch of queue-proxy's environment that makes pods require inner TLS, or stop to; [] if it is right.

    Pods that accept both TLS and plain HTTP are unchanged, because activators reach them in each mode.
    """
    present = proxy_container(deployment)
    is_strict = any(
        variable["name"] == INNER_TLS_VARIABLE and variable.get("value") == ENABLED
        for variable in present.get("env") or ()
    )
    if is_strict is sidecar.inner_tls.is_strict:
        return []
    if sidecar.inner_tls.is_on:
        wanted = {_AUTHORITY_VARIABLE: sidecar.authority, INNER_TLS_VARIABLE: sidecar.inner_tls.mode}
        return [{"name": name, "value": value} for name, value in wanted.items()]
    return [{"name": name, "$patch": "delete"} for name in (_AUTHORITY_VARIABLE, INNER_TLS_VARIABLE)]


def _drain_s(revision: Object, sidecar: Sidecar) -> int:
    # Grace periods are whole seconds.
    return int(revision["spec"]["timeoutSeconds"]) + -int(-sidecar.proxy.drain_lag_s // 1)


def _beside(container: Object, *, secret: str) -> Object:
    """A user container with ``PORT``, and a preStop hook that waits until the queue-proxy has drained."""
    rendered = {**container, "lifecycle": {"preStop": {"httpGet": _order("/wait-for-drain", secret)}}}
    if not container.get("ports"):
        return rendered
    port: int = container["ports"][0]["containerPort"]
    further = tcp_ports_of([container])
    ports = {"PORT": port, **{f"PORT_{number}": number for number in further}}
    rendered["env"] = [
        *container.get("env", ()),
        *({"name": name, "value": str(number)} for name, number in ports.items()),
    ]
    for name in _PROBES:
        if name in container:
            rendered[name] = at_own_port(container[name], port)
    if runs_in_queue_proxy(container.get("readinessProbe")):
        del rendered["readinessProbe"]
    return rendered


def _inside(revision: Object, serving: Object, sidecar: Sidecar, *, secret: str) -> Object:
    """The user's container with an in-process queue-proxy, which listens at the usual ports of a queue-proxy."""
    port, *further = serving["ports"]
    moved = {**serving, "ports": [{**port, "containerPort": QUEUE_PORT}, *further]}
    for name in _PROBES:
        if name in serving:
            moved[name] = _at_queue_port(serving[name], port["containerPort"])
    listening = [{"name": "HOST", "value": "0.0.0.0"}, {"name": "PORT", "value": str(QUEUE_PORT)}]  # noqa: S104 - the pod's network
    rendered = {
        **moved,
        "env": [
            *serving.get("env", ()),
            *listening,
            *_environment(revision, moved, sidecar, secret=secret),
        ],
        "ports": [*moved["ports"], _ADMIN],
    }
    if "readinessProbe" not in serving or runs_in_queue_proxy(serving["readinessProbe"]):
        rendered["readinessProbe"] = _READINESS
    for name in ("livenessProbe", "startupProbe"):
        if "httpGet" in rendered.get(name, ()):
            rendered[name] = _marked(rendered[name], secret=secret)
    if sidecar.settings.stats_audience:
        rendered["volumeMounts"] = [*serving.get("volumeMounts", ()), _MOUNT]
    return rendered


def _at_queue_port(probe: Object, app_port: int) -> Object:
    """The probe changed to the queue-proxy's port, at which an app with an in-process queue-proxy listens."""
    rendered = dict(probe)
    for handler in _HANDLERS:
        if handler in probe and probe[handler].get("port") in (None, app_port):
            rendered[handler] = {**probe[handler], "port": QUEUE_PORT}
    return rendered


def _marked(probe: Object, *, secret: str) -> Object:
    """The probe with headers for an in-process queue-proxy, which forwards it uncounted, even without TLS."""
    marks = [{"name": "K-Pod-Secret", "value": secret}, {"name": "K-Network-Probe", "value": APP_PROBE}]
    get = probe["httpGet"]
    return {**probe, "httpGet": {**get, "httpHeaders": [*(get.get("httpHeaders") or ()), *marks]}}


def at_own_port(probe: Object, port: int) -> Object:
    """The probe with the container's port, if it names none."""
    rendered = dict(probe)
    for handler in _HANDLERS:
        if handler in probe and not probe[handler].get("port"):
            rendered[handler] = {**probe[handler], "port": port}
    return rendered


def _queue_proxy(revision: Object, serving: Object, sidecar: Sidecar, *, secret: str) -> Object:
    return {
        "name": QUEUE_PROXY,
        "image": sidecar.settings.image or sidecar.image,
        "command": ["python", "-m", "serving.queueproxy.main"],
        "env": _environment(revision, serving, sidecar, secret=secret),
        "ports": [{"name": "queue-port", "containerPort": QUEUE_PORT, "protocol": "TCP"}, _ADMIN],
        "readinessProbe": _READINESS,
        "resources": _resources(sidecar.settings),
        "securityContext": _security(revision),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"volumeMounts": [_MOUNT]} if sidecar.settings.stats_audience else {}),
    }


def _environment(revision: Object, serving: Object, sidecar: Sidecar, *, secret: str) -> Sequence[Object]:
    port = serving["ports"][0]
    values = {
        "SERVING_POD_REVISION": labels_of(revision).get(REVISION_LABEL) or name_of(revision),
        "SERVING_POD_APP": f"127.0.0.1:{port['containerPort']}",
        "SERVING_POD_PROTOCOL": "h2c" if port["name"] == "h2c" else "http1",
        "SERVING_POD_STATS_URL": sidecar.settings.stats_url or sidecar.stats_url,
        **_stats_token(revision, sidecar),
        _SECRET_VARIABLE: secret,
        **({_AUTHORITY_VARIABLE: sidecar.authority} if sidecar.inner_tls.is_on else {}),
        **changed_variables(msgspec.structs.replace(sidecar.proxy, inner_tls=_inner_tls(sidecar))),
        **variables_of(revision["spec"]),
        **sidecar.proxy.logging.log_variables(labels_of(revision)),
        **_dormancy(revision),
        **load_variables(annotations_of(revision), app_port=port["containerPort"]),
        **tcp_variables({number: number for number in tcp_ports_of([serving])}),
        "SERVING_QUEUEPROXY_DRAIN_GRACE_S": str(_drain_s(revision, sidecar)),
    }
    probe = serving.get("readinessProbe")
    if probe and runs_in_queue_proxy(probe):
        taken = at_own_port(probe, port["containerPort"])
        values["SERVING_POD_READINESS"] = msgspec.json.encode(taken).decode()
    fields = {"SERVING_POD_NAMESPACE": "metadata.namespace", "SERVING_POD_NAME": "metadata.name"}
    if sidecar.proxy.logging.is_on:
        fields["SERVING_POD_IP"] = "status.podIP"
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        # Kubernetes expands ``$(NAME)``.
        *({"name": name, "value": value.replace("$(", "$$(")} for name, value in values.items()),
    ]


def _stats_token(revision: Object, sidecar: Sidecar) -> dict[str, str]:
    """The variable for the stats token: the token of the revision's pods, or the path of the pod's token file."""
    if sidecar.settings.stats_audience:
        return {"SERVING_POD_STATS_TOKEN_FILE": f"{_TOKEN_FOLDER}/{_TOKEN_FILE}"}
    name = labels_of(revision).get(REVISION_LABEL) or name_of(revision)
    return {"SERVING_POD_STATS_TOKEN": sidecar.token_of(namespace_of(revision), name)}


def _inner_tls(sidecar: Sidecar) -> InnerTlsSettings:
    """The environment variables for inner TLS; none without inner TLS, so that Deployments stay unchanged."""
    return sidecar.inner_tls if sidecar.inner_tls.is_on else InnerTlsSettings()


def _dormancy(revision: Object) -> dict[str, str]:
    """The environment variables for dormancy: when the app is frozen, and reasons not to freeze it."""
    settings = AutoscalerSettings()
    spec = resolve_annotations(annotations_of(revision), settings, container_concurrency=0, reachable=True)
    variables = dormant_variables(spec)
    return {**variables, "SERVING_POD_UNFROZEN": _unfrozen(revision["spec"])} if variables else {}


def _unfrozen(spec: Object) -> str:
    """Why a pod's app cannot be frozen; "" if its queue-proxy may try."""
    if not spec.get("shareProcessNamespace"):
        return "the pod does not share its process namespace"
    if any(container.get("livenessProbe") for container in spec["containers"]):
        return "the kubelet probes its liveness"
    return ""


def _security(revision: Object) -> Object:
    """The most restrictive security context. It sets a user only if the pod's ``runAsUser`` is root.

    Without ``runAsUser``, the user of the image applies.
    """
    is_root = nested(revision, "spec", "securityContext", "runAsUser") == 0
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        **({"runAsUser": _NONROOT_UID} if is_root else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _order(path: str, secret: str) -> Object:
    return {"path": path, "port": ADMIN_PORT, "httpHeaders": [{"name": "K-Pod-Secret", "value": secret}]}


def _volume(settings: SidecarSettings) -> Object:
    """A projected volume with a service account token that the kubelet renews."""
    token = {
        "audience": settings.stats_audience,
        "expirationSeconds": settings.token_expiration_s,
        "path": _TOKEN_FILE,
    }
    return {"name": _VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}


def _resources(settings: SidecarSettings) -> Object:
    wanted = {
        "requests": {
            "cpu": settings.cpu_request,
            "memory": settings.memory_request,
            "ephemeral-storage": settings.storage_request,
        },
        "limits": {
            "cpu": settings.cpu_limit,
            "memory": settings.memory_limit,
            "ephemeral-storage": settings.storage_limit,
        },
    }
    resources = {kind: {name: text for name, text in amounts.items() if text} for kind, amounts in wanted.items()}
    return {kind: amounts for kind, amounts in resources.items() if amounts}
