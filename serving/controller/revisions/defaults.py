"""Defaults of a revision's spec: timeouts, concurrency, container names, the readiness probe.

Input: the template's spec and the settings; output: the spec of a revision. Defaulting is idempotent. Follows
knative/serving 98e5ef90, pkg/apis/serving/v1/revision_defaults.go.
"""

import itertools
from collections.abc import Iterator, Sequence

from serving.core.model.errors import Problem
from serving.core.model.objects import Object
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.resources import RevisionResources

_HANDLERS = ("tcpSocket", "httpGet", "exec", "grpc")
_WITHOUT_ROOT = "Enabled"
_SECURED = {"AllowRootBounded", _WITHOUT_ROOT}
# Lower ports need a capability.
_LOW_PORT_MAX = 1024
_LOW_PORT_CAPABILITY = "NET_BIND_SERVICE"
_DISABLED = "disabled"
_TIMEOUTS = ("timeoutSeconds", "responseStartTimeoutSeconds", "idleTimeoutSeconds")


def spec_with_defaults(spec: Object, settings: ControllerSettings) -> Object:
    """A copy of a revision's spec with all defaults."""
    timeout_s = spec.get("timeoutSeconds") or settings.revision_timeout_s
    filled: Object = {
        **spec,
        "timeoutSeconds": timeout_s,
        "containerConcurrency": _or(spec.get("containerConcurrency"), settings.container_concurrency),
        "containers": [
            _secured(container, spec.get("securityContext") or {}, level=settings.secure_pod_defaults)
            for container in _containers(spec.get("containers") or (), settings)
        ],
    }
    if spec.get("initContainers"):
        filled["initContainers"] = [
            _secured(init_container, spec.get("securityContext") or {}, level=settings.secure_pod_defaults)
            for init_container in _init_containers(spec, settings)
        ]
    # A response-start timeout at or above the total timeout has no effect.
    if 0 < settings.revision_response_start_timeout_s < timeout_s:
        filled.setdefault("responseStartTimeoutSeconds", settings.revision_response_start_timeout_s)
    if settings.revision_idle_timeout_s:
        filled.setdefault("idleTimeoutSeconds", settings.revision_idle_timeout_s)
    if settings.enable_service_links != "false":
        filled.setdefault("enableServiceLinks", True)
    return filled


def timeouts_too_long(spec: Object, settings: ControllerSettings) -> Iterator[Problem]:
    """A problem for each timeout above the configured maximum."""
    longest = settings.max_revision_timeout_s
    for key in _TIMEOUTS:
        if spec.get(key, 0) > longest:
            yield Problem(
                where=f"spec.template.spec.{key}",
                what=f"expected 0 <= {spec[key]} <= {longest}",
                expected=f"at most max-revision-timeout-seconds, {longest}",
            )


def fields_not_allowed(
    spec: Object, settings: ControllerSettings, where: str = "spec.template.spec"
) -> Iterator[Problem]:
    """Yield the fields that would give a pod rights on its node, unless a feature flag allows them.

    A user who may only write Services must not get a pod that Kubernetes would deny this user. Messages are Knative's
    (knative/serving 01a70b23, pkg/apis/serving/fieldmask.go and k8s_validation.go).
    """
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            at = f"{where}.{field}[{index}].securityContext"
            context = container.get("securityContext") or {}
            if context.get("privileged"):
                yield _not_allowed(f"{at}.privileged")
            if context.get("procMount") not in (None, "", "Default"):
                yield _not_allowed(f"{at}.procMount")
            added = set((context.get("capabilities") or {}).get("add") or ())
            if added - {_LOW_PORT_CAPABILITY} and settings.add_capabilities == _DISABLED:
                yield _not_allowed(f"{at}.capabilities.add")
    for index, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("hostPath") is not None and settings.host_path_volumes != "enabled":
            what = f"HostPath volume support is disabled, but found HostPath volume {volume.get('name', '')}"
            yield Problem(where=f"{where}.volumes[{index}].hostPath", what=what, expected="another volume")


def _not_allowed(where: str) -> Problem:
    return Problem(where=where, what="must not set the field(s)", expected="a container without it")


def _containers(containers: Sequence[Object], settings: ControllerSettings) -> list[Object]:
    is_alone = len(containers) == 1
    return [
        _container(
            container,
            name=settings.container_name if is_alone else f"{settings.container_name}-{index}",
            alone=is_alone,
            defaults=settings.revision_resources,
        )
        for index, container in enumerate(containers)
    ]


def _init_containers(spec: Object, settings: ControllerSettings) -> list[Object]:
    """The init containers, renamed so that names are unique in the pod."""
    containers: Sequence[Object] = spec["initContainers"]
    taken = {container.get("name") for container in (*containers, *(spec.get("containers") or ()))}
    base = settings.init_container_name
    first = (base,) if len(containers) == 1 else ()
    spare = (
        name for name in itertools.chain(first, map(f"{base}-{{}}".format, itertools.count())) if name not in taken
    )
    return [{**container, "name": container.get("name") or next(spare)} for container in containers]


def _container(container: Object, *, name: str, alone: bool, defaults: RevisionResources) -> Object:
    resources = _with_resources(container.get("resources") or {}, defaults)
    filled = {**container, "resources": resources, "name": container.get("name") or name}
    # Of several containers, only the one with a port gets a default probe.
    if alone or container.get("ports"):
        filled["readinessProbe"] = _probe(container.get("readinessProbe") or {})
    return filled


def _with_resources(resources: Object, defaults: RevisionResources) -> Object:
    wanted = {"requests": defaults.requests, "limits": defaults.limits}
    filled = {key: {**default, **(resources.get(key) or {})} for key, default in wanted.items() if default}
    return {**resources, **filled}


def _secured(container: Object, pod: Object, *, level: str) -> Object:
    """A container with the security context of secure-pod-defaults.

    Settings of the pod and the container override it.
    """
    if level not in _SECURED:
        return container
    context = {"allowPrivilegeEscalation": False, **(container.get("securityContext") or {})}
    if not (pod.get("seccompProfile") or {}).get("type"):
        context["seccompProfile"] = {"type": "RuntimeDefault", **(context.get("seccompProfile") or {})}
    if context.get("capabilities") is None:
        is_low = any(port.get("containerPort", _LOW_PORT_MAX) < _LOW_PORT_MAX for port in container.get("ports") or ())
        context["capabilities"] = {"drop": ["ALL"], **({"add": ["NET_BIND_SERVICE"]} if is_low else {})}
    if level == _WITHOUT_ROOT and pod.get("runAsNonRoot") is None:
        context.setdefault("runAsNonRoot", True)
    return {**container, "securityContext": context}


def _probe(probe: Object) -> Object:
    filled = {**probe, "successThreshold": probe.get("successThreshold") or 1}
    if not any(handler in probe for handler in _HANDLERS):
        # Port 0 means the container's port.
        filled["tcpSocket"] = {"port": 0}
    return filled


def _or(written: int | None, default: int) -> int:
    return default if written is None else written
