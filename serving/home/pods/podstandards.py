"""Kubernetes' Pod Security Standards: the pod fields that each level forbids. Pure.

Input: a template of pods; output: its violations in Kubernetes' own words. Follows kubernetes/kubernetes 1.34,
staging/src/k8s.io/pod-security-admission. One capability differs: MKNOD is not a default capability, because containers
here have no device filter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from serving.core.model.objects import Object, nested, object_at, objects_at

PRIVILEGED, BASELINE, RESTRICTED = "privileged", "baseline", "restricted"
LEVELS = (PRIVILEGED, BASELINE, RESTRICTED)
"""The levels, from the weakest to the strictest."""

APPARMOR_PREFIX = "container.apparmor.security.beta.kubernetes.io/"
"""Prefix of annotations with the AppArmor profile of one container."""

_CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_CAPABILITIES = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
_LOW_PORTS = frozenset({"NET_BIND_SERVICE"})
_SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
_SYSCTLS = frozenset(
    {
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"),
        *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout"),
        *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"),
        *("net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem"),
    }
)
_PROFILES = frozenset({"RuntimeDefault", "Localhost"})
_VOLUMES = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir"),
        *("ephemeral", "persistentVolumeClaim", "projected", "secret"),
    }
)
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
_HANDLERS = ("httpGet", "tcpSocket")


class PodViolation(msgspec.Struct, frozen=True):
    """A violation as text: "privileged (container "a" must not set securityContext.privileged=true)"."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


class _PodTemplate:
    """A pod template, as the checks read it. Malformed parts count as absent, because the schema rejects them."""

    def __init__(self, template: Object) -> None:
        self.annotations = {
            key: str(text) for key, text in object_at(object_at(template, "metadata"), "annotations").items()
        }
        self.spec = object_at(template, "spec")
        self.context = object_at(self.spec, "securityContext")
        self.containers = [
            (str(container.get("name") or ""), container, object_at(container, "securityContext"))
            for field in _CONTAINERS
            for container in objects_at(self.spec, field)
        ]
        self.volumes = [(str(volume.get("name") or ""), volume) for volume in objects_at(self.spec, "volumes")]

    def named(self, is_bad: Callable[[Object], bool]) -> list[str]:
        """The names of the containers whose security context satisfies ``is_bad``."""
        return [name for name, _, context in self.containers if is_bad(context)]

    def setters(self, is_bad: Callable[[Object], bool]) -> str:
        """The pod and the containers whose security context satisfies ``is_bad``, in words; "" if there are none."""
        names = self.named(is_bad)
        parts = [*(["pod"] if is_bad(self.context) else []), *([_named("container", names)] if names else [])]
        return " and ".join(parts)

    def values(self, *path: str) -> set[str]:
        """The values at a path in all security contexts, as texts."""
        contexts = (self.context, *(context for _, _, context in self.containers))
        return {str(value) for context in contexts if (value := nested(context, *path)) is not None}

    def uncovered(self, is_good: Callable[[Object], bool], field: str) -> str:
        """The containers that do not set ``field``, in words; "" if there are none.

        Containers inherit the field from the pod, so the result is also "" if the pod's context satisfies ``is_good``.
        """
        if is_good(self.context):
            return ""
        names = self.named(lambda context: context.get(field) is None)
        return f"pod or {_named('container', names)}" if names else ""


Check = Callable[[_PodTemplate], Iterator[PodViolation]]


def _quoted(values: Iterable[str]) -> str:
    return ", ".join(f'"{value}"' for value in values)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _named(word: str, names: Sequence[str]) -> str:
    return f"{_plural(word, len(names))} {_quoted(names)}"


def _use(names: Sequence[str]) -> str:
    return "uses" if len(names) == 1 else "use"


def _privileged(pod: _PodTemplate) -> Iterator[PodViolation]:
    if names := pod.named(lambda context: context.get("privileged") is True):
        yield PodViolation("privileged", f"{_named('container', names)} must not set securityContext.privileged=true")


def _host_namespaces(pod: _PodTemplate) -> Iterator[PodViolation]:
    if fields := [f"{field}=true" for field in _HOST_NAMESPACES if pod.spec.get(field) is True]:
        yield PodViolation("host namespaces", ", ".join(fields))


def _host_path(pod: _PodTemplate) -> Iterator[PodViolation]:
    if names := [name for name, volume in pod.volumes if volume.get("hostPath") is not None]:
        yield PodViolation("hostPath volumes", _named("volume", names))


def _host_ports(pod: _PodTemplate) -> Iterator[PodViolation]:
    ports = {
        name: [port["hostPort"] for port in objects_at(container, "ports") if port.get("hostPort")]
        for name, container, _ in pod.containers
    }
    names, numbers = (
        [name for name in ports if ports[name]],
        sorted({str(port) for every in ports.values() for port in every}),
    )
    if names:
        detail = f"{_named('container', names)} {_use(names)} {_plural('hostPort', len(numbers))} {', '.join(numbers)}"
        yield PodViolation("hostPort", detail)


def _probe_hosts(pod: _PodTemplate) -> Iterator[PodViolation]:
    hosts: dict[str, set[str]] = {}
    for name, container, _ in pod.containers:
        lifecycle = object_at(container, "lifecycle")
        calls = [*(object_at(container, probe) for probe in _PROBES), *(object_at(lifecycle, hook) for hook in _HOOKS)]
        for host in (object_at(call, handler).get("host") for call in calls for handler in _HANDLERS):
            if host:
                hosts.setdefault(name, set()).add(str(host))
    if hosts:
        names, every = sorted(hosts), sorted(set().union(*hosts.values()))
        title = _plural("probe or lifecycle host", len(every))
        detail = f"{_named('container', names)} {_use(names)} {title} {_quoted(every)}"
        yield PodViolation("probe or lifecycle host", detail)


def _added(context: Object) -> list[str]:
    added = object_at(context, "capabilities").get("add")
    return [str(name) for name in added] if isinstance(added, list) else []


def _capabilities(pod: _PodTemplate, *, allowed: frozenset[str]) -> str:
    """The containers that add capabilities outside of ``allowed``, in words; "" if none."""
    names = pod.named(lambda context: bool(set(_added(context)) - allowed))
    others = sorted({capability for _, _, context in pod.containers for capability in _added(context)} - allowed)
    if not names:
        return ""
    return f"{_named('container', names)} must not include {_quoted(others)} in securityContext.capabilities.add"


def _default_capabilities(pod: _PodTemplate) -> Iterator[PodViolation]:
    if detail := _capabilities(pod, allowed=_CAPABILITIES):
        yield PodViolation("non-default capabilities", detail)


def _apparmor(pod: _PodTemplate) -> Iterator[PodViolation]:
    def is_bad(context: Object) -> bool:
        return (
            context.get("appArmorProfile") is not None and nested(context, "appArmorProfile", "type") not in _PROFILES
        )

    setters = pod.setters(is_bad)
    values = sorted(pod.values("appArmorProfile", "type") - _PROFILES)
    annotated = sorted(
        f'{key}="{text}"'
        for key, text in pod.annotations.items()
        if key.startswith(APPARMOR_PREFIX) and text not in {"", "runtime/default"} and not text.startswith("localhost/")
    )
    if setters or annotated:
        parts = [setters] if setters else []
        parts += [_plural("annotation", len(annotated))] if annotated else []
        every = [*values, *annotated]
        detail = f"{' and '.join(parts)} must not set AppArmor profile type to {_quoted(every)}"
        yield PodViolation(_plural("forbidden AppArmor profile", len(every)), detail)


def _selinux(pod: _PodTemplate) -> Iterator[PodViolation]:
    def is_bad(context: Object) -> bool:
        options = object_at(context, "seLinuxOptions")
        return (options.get("type") or "") not in _SELINUX_TYPES or bool(options.get("user") or options.get("role"))

    if setters := pod.setters(is_bad):
        types = sorted(pod.values("seLinuxOptions", "type") - _SELINUX_TYPES)
        parts = [f"{_plural('type', len(types))} {_quoted(types)}"] if types else []
        parts += [f"{key} may not be set" for key in ("user", "role") if pod.values("seLinuxOptions", key) - {""}]
        yield PodViolation(
            "seLinuxOptions", f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(parts)}"
        )


def _proc_mount(pod: _PodTemplate) -> Iterator[PodViolation]:
    if names := pod.named(lambda context: context.get("procMount") not in {None, "Default"}):
        values = sorted(pod.values("procMount") - {"Default"})
        yield PodViolation(
            "procMount", f"{_named('container', names)} must not set securityContext.procMount to {_quoted(values)}"
        )


def _seccomp(pod: _PodTemplate) -> Iterator[PodViolation]:
    def is_bad(context: Object) -> bool:
        return context.get("seccompProfile") is not None and nested(context, "seccompProfile", "type") not in _PROFILES

    if setters := pod.setters(is_bad):
        values = _quoted(sorted(pod.values("seccompProfile", "type") - _PROFILES))
        yield PodViolation("seccompProfile", f"{setters} must not set securityContext.seccompProfile.type to {values}")


def _sysctls(pod: _PodTemplate) -> Iterator[PodViolation]:
    names = [
        str(sysctl.get("name")) for sysctl in objects_at(pod.context, "sysctls") if sysctl.get("name") not in _SYSCTLS
    ]
    if names:
        yield PodViolation("forbidden sysctls", ", ".join(names))


def _host_process(pod: _PodTemplate) -> Iterator[PodViolation]:
    if setters := pod.setters(lambda context: object_at(context, "windowsOptions").get("hostProcess") is True):
        yield PodViolation("hostProcess", f"{setters} must not set securityContext.windowsOptions.hostProcess=true")


def _escalation(pod: _PodTemplate) -> Iterator[PodViolation]:
    if names := pod.named(lambda context: context.get("allowPrivilegeEscalation") is not False):
        detail = f"{_named('container', names)} must set securityContext.allowPrivilegeEscalation=false"
        yield PodViolation("allowPrivilegeEscalation != false", detail)


def _no_capabilities(pod: _PodTemplate) -> Iterator[PodViolation]:
    names = pod.named(lambda context: "ALL" not in (object_at(context, "capabilities").get("drop") or ()))
    parts = [f'{_named("container", names)} must set securityContext.capabilities.drop=["ALL"]'] if names else []
    if added := _capabilities(pod, allowed=_LOW_PORTS):
        parts.append(added)
    if parts:
        yield PodViolation("unrestricted capabilities", "; ".join(parts))


def _volume_types(pod: _PodTemplate) -> Iterator[PodViolation]:
    bad = {
        name: next((kind for kind, source in volume.items() if kind != "name" and source is not None), "unknown")
        for name, volume in pod.volumes
        if not any(volume.get(kind) is not None for kind in _VOLUMES)
    }
    if bad:
        names, types = list(bad), sorted(set(bad.values()))
        title = _plural("restricted volume type", len(types))
        detail = f"{_named('volume', names)} {_use(names)} {title} {_quoted(types)}"
        yield PodViolation("restricted volume types", detail)


def _non_root(pod: _PodTemplate) -> Iterator[PodViolation]:
    if setters := pod.setters(lambda context: context.get("runAsNonRoot") is False):
        yield PodViolation("runAsNonRoot != true", f"{setters} must not set securityContext.runAsNonRoot=false")
    elif uncovered := pod.uncovered(lambda context: context.get("runAsNonRoot") is True, "runAsNonRoot"):
        yield PodViolation("runAsNonRoot != true", f"{uncovered} must set securityContext.runAsNonRoot=true")


def _user_of_root(pod: _PodTemplate) -> Iterator[PodViolation]:
    if setters := pod.setters(lambda context: context.get("runAsUser") == 0 and context.get("runAsUser") is not False):
        yield PodViolation("runAsUser=0", f"{setters} must not set runAsUser=0")


def _required_seccomp(pod: _PodTemplate) -> Iterator[PodViolation]:
    violations = list(_seccomp(pod))
    yield from violations
    if violations:
        return
    if uncovered := pod.uncovered(lambda context: context.get("seccompProfile") is not None, "seccompProfile"):
        detail = f'{uncovered} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
        yield PodViolation("seccompProfile", detail)


# In the order of Kubernetes' messages, which is sorted by check id.
_CHECKS: Mapping[str, tuple[Check, ...]] = {
    PRIVILEGED: (),
    BASELINE: (
        *(_apparmor, _default_capabilities, _host_namespaces, _host_path, _host_ports, _probe_hosts),
        *(_privileged, _proc_mount, _selinux, _seccomp, _sysctls, _host_process),
    ),
    RESTRICTED: (
        *(_escalation, _apparmor, _no_capabilities, _host_namespaces, _host_ports, _probe_hosts),
        *(_privileged, _proc_mount, _volume_types, _non_root, _user_of_root, _selinux, _required_seccomp),
        *(_sysctls, _host_process),
    ),
}


def violations_of(template: Object, level: str) -> list[PodViolation]:
    """The violations of a Pod Security level by a pod template."""
    pod = _PodTemplate(template)
    return [violation for check in _CHECKS[level] for violation in check(pod)]


def violation_text(template: Object, level: str) -> str:
    """All violations of a level in one sentence; "" if there are none."""
    violations = violations_of(template, level)
    return f'violates PodSecurity "{level}:latest": {", ".join(map(str, violations))}' if violations else ""
