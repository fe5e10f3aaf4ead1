"""The Deployment of a revision, and the private Service that selects its pods.

Input: a revision with its defaults filled in; output: objects to create. Neither object changes later: a revision is
immutable, and the autoscaler owns the number of replicas. With a ``Sidecar`` the queue-proxy is a container of the pod
template. Without one, the runtime starts the queue-proxy: on one machine the kubelet forks it from the warm template.

Follows knative/serving 98e5ef90, pkg/reconciler/revision/resources/deploy.go.
"""

from collections.abc import Mapping, Sequence

import msgspec

from serving.controller.revisions.digests import with_digests
from serving.controller.revisions.sidecar import (
    QUEUE_PORT,
    Sidecar,
    at_own_port,
    inner_tls_variables,
    proxy_container,
    with_sidecar,
)
from serving.controller.values.naming import deployment_name, private_service_name
from serving.core.model.knative import (
    APP_LABEL,
    AWAKE_RESOURCES_ANNOTATION,
    CONFIGURATION_LABEL,
    DEFAULT_CONTAINER_ANNOTATION,
    GUARDED_ANNOTATION,
    GUARDED_VARIABLE,
    LAST_APPLIED_ANNOTATION,
    QUEUE_PROXY,
    REVISION_LABEL,
    REVISION_STATE_ANNOTATIONS,
    REVISION_UID_LABEL,
    SERVICE_LABEL,
    SERVING_GROUP,
    RevisionFields,
)
from serving.core.model.objects import (
    Object,
    annotations_of,
    labels_of,
    name_of,
    namespace_of,
    nested,
    owner_reference,
    uid_of,
    with_kubernetes_scheme,
)
from serving.core.model.ports import CONTAINER_PORT
from serving.core.model.selectors import name_for
from serving.core.scaling.podsize import start_resources, started_resources
from serving.core.settings.annotations import read_annotations
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.selectors import selected_names
from serving.net.cluster.kinds import DEPLOYMENT
from serving.net.cluster.port import Patch, PatchType

# The port of a container that declares none.
_USER_PORT_NAME = "user-port"
# Annotations that change while a revision runs; its pods keep their values.
_NOT_OF_PODS = REVISION_STATE_ANNOTATIONS | {LAST_APPLIED_ANNOTATION, GUARDED_ANNOTATION}
# Fields of a revision's spec that are not part of the pod's spec.
_AS_WRITTEN: Mapping[str, str] = {}
_NOT_OF_THE_POD = RevisionFields.__optional_keys__


def desired_deployment(
    revision: Object,
    *,
    replica_count: int,
    progress_deadline_s: float,
    sidecar: Sidecar | None = None,
    is_guarded: bool = False,
    images: Mapping[str, str] = _AS_WRITTEN,
) -> Object:
    """The Deployment of a revision with its initial replicas. ``images`` has the digests of its images."""
    pod_spec = with_digests(_pod_spec(revision, "" if sidecar is None else sidecar.settings.runtime_classes), images)
    labels = _labels(revision)
    annotations = _annotations(revision)
    of_pods = {**annotations, GUARDED_ANNOTATION: "true"} if is_guarded else annotations
    start_cpu = read_annotations(annotations, AutoscalerSettings()).scaling.start_cpu
    if sidecar is not None and start_cpu is not None:
        pod_spec, awake = _with_start_cpu(pod_spec, start_cpu)
        of_pods = {**of_pods, AWAKE_RESOURCES_ANNOTATION: awake}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": deployment_name(name_of(revision)),
            "namespace": namespace_of(revision),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(revision)],
        },
        "spec": {
            "replicas": replica_count,
            "selector": {"matchLabels": {REVISION_UID_LABEL: uid_of(revision)}},
            "progressDeadlineSeconds": int(progress_deadline_s),
            # Only the guard and inner TLS change the template, which then replaces the pods one after another.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}},
            "revisionHistoryLimit": 0,
            "template": {
                "metadata": {"labels": labels, "annotations": {**_default_container(pod_spec, sidecar), **of_pods}},
                "spec": pod_spec
                if sidecar is None
                else with_sidecar(pod_spec, revision, sidecar, is_guarded=is_guarded),
            },
        },
    }


def template_patch(deployment: Object, *, is_guarded: bool, sidecar: Sidecar | None) -> Sequence[Patch]:
    """The patch of a Deployment's template so that pods accept only activators, or reject plain HTTP, as required."""
    changed: Object = {}
    variables = [] if sidecar is None else inner_tls_variables(deployment, sidecar)
    if (GUARDED_ANNOTATION in annotations_of(nested(deployment, "spec", "template") or {})) is not is_guarded:
        changed["metadata"] = {"annotations": {GUARDED_ANNOTATION: "true" if is_guarded else None}}
        if sidecar is not None:
            variables.append({"name": GUARDED_VARIABLE, **({"value": "true"} if is_guarded else {"$patch": "delete"})})
    if variables:
        name = proxy_container(deployment).get("name", QUEUE_PROXY)
        changed["spec"] = {"containers": [{"name": name, "env": variables}]}
    if not changed:
        return ()
    return (
        Patch(
            kind=DEPLOYMENT,
            namespace=namespace_of(deployment),
            name=name_of(deployment),
            patch={"spec": {"template": changed}},
            patch_type=PatchType.STRATEGIC,
        ),
    )


def _default_container(pod_spec: Object, sidecar: Sidecar | None) -> dict[str, str]:
    """The annotation that makes the app's container kubectl's default; {} without a queue-proxy container."""
    if sidecar is None:
        return {}
    return {
        DEFAULT_CONTAINER_ANNOTATION: next(
            container["name"] for container in pod_spec["containers"] if container.get("ports")
        )
    }


def desired_private_service(revision: Object) -> Object:
    """The headless Service of a revision, whose EndpointSlices list the revision's pods.

    It receives no requests, and has no cluster IP, because a cluster may have only 254 cluster IPs.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": private_service_name(name_of(revision)),
            "namespace": namespace_of(revision),
            "labels": _labels(revision),
            "ownerReferences": [owner_reference(revision)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {REVISION_UID_LABEL: uid_of(revision)},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": QUEUE_PORT}],
        },
    }


def _labels(revision: Object) -> dict[str, str]:
    labels = {key: value for key, value in labels_of(revision).items() if not _is_about_routing(key)}
    labels.setdefault(APP_LABEL, name_of(revision))
    return {**labels, REVISION_LABEL: name_of(revision), REVISION_UID_LABEL: uid_of(revision)}


def _is_about_routing(key: str) -> bool:
    # A pod's labels are constant, but the routing state changes.
    return key.startswith(f"{SERVING_GROUP}/") and key not in {SERVICE_LABEL, CONFIGURATION_LABEL}


def _annotations(revision: Object) -> dict[str, str]:
    return {key: value for key, value in annotations_of(revision).items() if key not in _NOT_OF_PODS}


def _pod_spec(revision: Object, runtime_classes: str) -> Object:
    spec = revision["spec"]
    containers: Sequence[Object] = spec["containers"]
    is_alone = len(containers) == 1
    runtime_class = name_for(labels_of(revision), selected_names(runtime_classes))
    return {
        **({"runtimeClassName": runtime_class} if runtime_class else {}),
        **{key: value for key, value in spec.items() if key not in _NOT_OF_THE_POD},
        "enableServiceLinks": spec.get("enableServiceLinks", False),
        # A running request may last as long as the revision's timeout.
        "terminationGracePeriodSeconds": spec["timeoutSeconds"],
        "containers": [
            _container(container, revision, serves=is_alone or bool(container.get("ports"))) for container in containers
        ],
    }


def _with_start_cpu(pod_spec: Object, start_cpu: str) -> tuple[Object, str]:
    """Give the serving container more cpu; return the pod's spec, and the resources after the start as JSON."""
    awake = {
        container["name"]: started_resources(container)
        for container in pod_spec["containers"]
        if container.get("ports")
    }
    containers = [
        {**container, "resources": start_resources(container, start_cpu)} if container["name"] in awake else container
        for container in pod_spec["containers"]
    ]
    return {**pod_spec, "containers": containers}, msgspec.json.encode(awake).decode()


def _container(container: Object, revision: Object, *, serves: bool) -> Object:
    labels = labels_of(revision)
    environment = [
        {"name": "K_REVISION", "value": name_of(revision)},
        {"name": "K_CONFIGURATION", "value": labels.get(CONFIGURATION_LABEL, "")},
        {"name": "K_SERVICE", "value": labels.get(SERVICE_LABEL, "")},
    ]
    rendered = {
        **container,
        "env": [*container.get("env", ()), *environment],
        # The status of a failed container includes the last lines of its log.
        "terminationMessagePolicy": container.get("terminationMessagePolicy") or "FallbackToLogsOnError",
    }
    if serves:
        port = _port(container)
        rendered["ports"] = [port, *(container.get("ports") or ())[1:]]
        # Servers reject a probe without a port.
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if container.get(probe):
                rendered[probe] = at_own_port(container[probe], port["containerPort"])
        if container.get("readinessProbe"):
            rendered["readinessProbe"] = with_kubernetes_scheme(rendered["readinessProbe"])
    return rendered


def _port(container: Object) -> Object:
    first: Object = (container.get("ports") or [{}])[0]
    return {
        "name": first.get("name") or _USER_PORT_NAME,
        "containerPort": first.get("containerPort") or CONTAINER_PORT,
        "protocol": first.get("protocol") or "TCP",
    }
