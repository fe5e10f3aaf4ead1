"""Refuses commands and folders of the machine to users without the right to run programs.

A pod with a command of the machine is a process: its command, environment and annotations name files that the kubelet
makes visible. So a user without that right may only write pods of images. Unchanged parts of another user are allowed,
so that such a service can be scaled and its traffic split.
"""

from collections.abc import Iterator
from typing import Any

from serving.core.model.errors import Forbidden
from serving.core.model.knative import (
    COMMAND_ANNOTATION,
    FOLDER_ANNOTATION,
    IMAGES_ONLY_ANNOTATION,
    NETWORK_ANNOTATION,
    PRELOAD_MODULES_ANNOTATION,
    QUEUE_PROXY_ANNOTATION,
    SNAPSHOT_ANNOTATION,
    TEMPLATE_ANNOTATION,
    TemplateFields,
)
from serving.core.model.objects import Object, annotations_of, name_of, nested
from serving.home.pods.podplan import runs_images
from serving.home.schemas.patch import same_json
from serving.home.store.requester import acting_user, may_run_programs
from serving.net.cluster.kinds import CONFIGURATION, DEPLOYMENT, POD, REVISION, SERVING_SERVICE, Kind

_TEMPLATES = {
    **dict.fromkeys((SERVING_SERVICE, CONFIGURATION, DEPLOYMENT), ("spec", "template")),
    **dict.fromkeys((REVISION, POD), ()),
}
_PROCESS_ANNOTATIONS = (
    *(COMMAND_ANNOTATION, FOLDER_ANNOTATION, SNAPSHOT_ANNOTATION, NETWORK_ANNOTATION),
    *(TEMPLATE_ANNOTATION, PRELOAD_MODULES_ANNOTATION, QUEUE_PROXY_ANNOTATION),
)
# Requests, limits, and fields that a server fills in.
_HARMLESS = frozenset(TemplateFields.__annotations__) | {
    "servingState",
    "enableServiceLinks",
    "nodeName",
    "tolerations",
}


def without_host_programs(kind: Kind, new: Object, old: Object | None, *, has_runtime: bool) -> Object:
    """Restrict the pods of a user without the right to run programs of this machine; return the object to store.

    If such a pod would run a program of the machine, raises ``Forbidden``. Otherwise the pods are marked to run only as
    containers. ``has_runtime``: a container runtime exists; without one, a pod with a command runs as a process of the
    machine.
    """
    if may_run_programs() or kind not in _TEMPLATES:
        return new
    path = _TEMPLATES[kind]
    template, before = (
        (nested(whole, *path) if path else whole) if whole is not None else None for whole in (new, old)
    )
    if not isinstance(template, dict):
        return new
    if isinstance(before, dict) and same_json(_process_parts(before), _process_parts(template)):
        return new
    part = next(_host_parts(template, has_runtime=has_runtime), None)
    if part is not None:
        title = f'{kind.resource} "{name_of(new)}"'
        raise Forbidden(
            f'{title} is forbidden: User "{acting_user()}" cannot run programs or name folders of the machine ({part}); '
            "the role admin can, and pods of images need no such right"
        )
    metadata = template.get("metadata") or {}
    marked = {**(metadata.get("annotations") or {}), IMAGES_ONLY_ANNOTATION: "true"}
    template = {**template, "metadata": {**metadata, "annotations": marked}}
    return {**new, "spec": {**new["spec"], "template": template}} if path else template


def _host_parts(template: Object, *, has_runtime: bool) -> Iterator[str]:
    annotations = annotations_of(template)
    yield from (
        f"annotation {process_annotation}"
        for process_annotation in _PROCESS_ANNOTATIONS
        if process_annotation in annotations
    )
    spec: Any = template.get("spec") or {}
    if not isinstance(spec, dict):
        return
    for volume in spec.get("volumes") or ():
        if isinstance(volume, dict) and volume.get("hostPath") is not None:
            yield f"hostPath of volume {volume.get('name')}"
    if not has_runtime or not runs_images(template):
        yield "no container runtime runs images here, so that only processes run"


def _process_parts(template: Object) -> Object:
    """The parts of a pod template that affect the programs of its pods. Any user may change the other parts."""
    annotations = annotations_of(template)
    spec = template.get("spec") or {}
    annotation_names = (*_PROCESS_ANNOTATIONS, IMAGES_ONLY_ANNOTATION)
    return {
        "annotations": {key: annotations[key] for key in annotation_names if key in annotations},
        "spec": {key: value for key, value in spec.items() if key not in _HARMLESS},
    }
