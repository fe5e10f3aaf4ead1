"""Reads the objects of an installation from ``config/kustomization.yaml`` and the components, in apply order.

Input: the folder, in an installed package or the checkout, and the user's changes; output: objects as JSON. The module
supports the parts of kustomize in this one file (resources, namespace, images) and rejects other parts, so that
``serving install`` needs no kubectl; a test compares the objects with the output of ``kubectl kustomize``.
"""

import copy
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from serving.core.model.errors import ServingError
from serving.core.model.knative import COMPONENTS_ANNOTATION
from serving.core.model.objects import Object
from serving.home.schemas.crds import YAML_LOADER, crd_folder
from serving.home.schemas.patch import json_patch
from serving.home.schemas.strategic import strategic_merge
from serving.net.cluster.kinds import kind_of

OUR_LABEL = ("app.kubernetes.io/part-of", "serving")
# Definitions that exist only in an installation of Knative Serving.
KNATIVE_CRDS = ("podautoscalers.autoscaling.internal.knative.dev", "ingresses.networking.internal.knative.dev")
_KNOWN_KEYS = {"apiVersion", "kind", "namespace", "images", "resources"}
_CRD = "CustomResourceDefinition"
# No node pulls from a registry with this name.
_LOCAL = "localhost"
_DAEMONS, _QUEUE_PROXY, _PLACEMENT = (f"{_LOCAL}/serving{end}" for end in ("", "-queue-proxy", "-placement"))
# Dependencies first; unlisted kinds last.
_ORDER = (
    "Namespace",
    _CRD,
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "NetworkPolicy",
    "Job",
    "PersistentVolumeClaim",
    "Service",
    "PodDisruptionBudget",
    "Deployment",
)
_POLICIES = {f"{verb}AdmissionPolicy{noun}" for verb in ("Mutating", "Validating") for noun in ("", "Binding")}
_WITHOUT_NAMESPACE = {"Namespace", _CRD, "ClusterRole", "ClusterRoleBinding", *_POLICIES}
OPTIONAL_KINDS = frozenset(kind for kind in _POLICIES if kind.startswith("Mutating"))
"""Kinds that some supported servers lack; an installation on such a server skips the objects."""
# Kinds of components and of earlier versions; an upgrade deletes obsolete objects of these kinds.
_EARLIER_KINDS = {
    "Job": "batch/v1",
    "Gateway": "gateway.networking.k8s.io/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "PersistentVolumeClaim": "v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
}
_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
}


class InstallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to the shipped manifests. "" leaves the shipped value."""

    registry: str = ""
    """Registry and path of all images, such as registry.example/team; image names and tags do not change."""

    image: str = ""
    """The image of all daemons, with registry and tag."""

    queue_proxy_image: str = ""
    """The image of the queue-proxy, with registry and tag: ``queue-sidecar-image`` of ConfigMap config-deployment."""

    namespace: str = ""
    """The namespace of the daemons."""

    domain: str = ""
    """The domain of public hosts, in ConfigMap config-controller."""

    placement_image: str = ""
    """The image of the daemon in the component placement, with registry and tag."""

    priority_class: str = ""
    """The PriorityClass of all daemons."""

    components: tuple[str, ...] = ()
    """Names of folders in ``config/components``."""


_COMPONENT_KEYS = {"apiVersion", "kind", "resources", "patches"}
_FOLDER, _FILE = "components", "kustomization.yaml"


def component_names(folder: Path) -> list[str]:
    """The names of all components in a tree."""
    return sorted(path.parent.name for path in (folder / _FOLDER).glob(f"*/{_FILE}"))


def with_components(folder: Path, objects: Sequence[Object], names: Sequence[str]) -> list[Object]:
    """The objects after applying components in the order of ``names``. Components change and add objects.

    Raises:
        ServingError: when a component does not exist, or requires another that is not in ``names``.
    """
    known = component_names(folder)
    for name in names:
        if name not in known:
            raise ServingError(f"unknown component {name!r}; expected one of {', '.join(known)}")
    combined = [*objects, *(resource for name in names for resource in _resources(folder, name))]
    for name in names:
        _check_accounts(folder, combined, name)
        for patch in _kustomization(folder, name).get("patches", ()):
            combined = _patched(folder, combined, patch, name=name)
    return combined


def _kustomization(folder: Path, name: str) -> Object:
    content: Object = _documents(folder / _FOLDER / name / _FILE)[0]
    unknown = content.keys() - _COMPONENT_KEYS
    assert not unknown, f"component {name} has {unknown}, which only kubectl understands"
    return content


def _resources(folder: Path, name: str) -> Iterator[Object]:
    for resource in _kustomization(folder, name).get("resources", ()):
        yield from _documents(folder / _FOLDER / name / resource)


def _patched(folder: Path, objects: Sequence[Object], patch: Object, *, name: str) -> list[Object]:
    target, content = patch["target"], yaml.load(patch["patch"], Loader=YAML_LOADER)  # noqa: S506 - both loaders are safe
    is_target = [_is_target(resource, target) for resource in objects]
    if not any(is_target):
        raise _needs(folder, name, kind=target["kind"], wanted=target["name"])
    return [
        _changed(resource, content) if chosen else resource for resource, chosen in zip(objects, is_target, strict=True)
    ]


def _is_target(resource: Object, target: Object) -> bool:
    # As in kustomize: a regular expression for the whole name.
    return bool(resource["kind"] == target["kind"] and re.fullmatch(target["name"], resource["metadata"]["name"]))


def _changed(resource: Object, content: Any) -> Object:  # noqa: ANN401 - YAML
    if isinstance(content, list):
        changed: Object = json_patch(resource, content)
        return changed
    kind = kind_of(resource["apiVersion"], resource["kind"])
    assert kind is not None, "components patch kinds of the table only"
    return strategic_merge(kind, resource, content)


def _check_accounts(folder: Path, objects: Sequence[Object], name: str) -> None:
    accounts = {resource["metadata"]["name"] for resource in objects if resource["kind"] == "ServiceAccount"}
    for resource in _resources(folder, name):
        for subject in resource.get("subjects", ()):
            if subject["name"] not in accounts:
                raise _needs(folder, name, kind="ServiceAccount", wanted=subject["name"])


def _needs(folder: Path, name: str, *, kind: str, wanted: str) -> ServingError:
    holders = [
        other
        for other in component_names(folder)
        for resource in _resources(folder, other)
        if (resource["kind"], resource["metadata"]["name"]) == (kind, wanted)
    ]
    return ServingError(f"component {name} needs the component {' or '.join(holders)} too, for its {kind} {wanted}")


def _documents(path: Path) -> list[Object]:
    """The documents of a YAML file.

    The result is cached, because parsing takes most of the time, and a chart reads each file many times.
    """
    documents: list[Object] = msgspec.json.decode(_parsed(path, path.stat().st_mtime_ns))
    return documents


@functools.cache
def _parsed(path: Path, _: int) -> bytes:
    return msgspec.json.encode(list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=YAML_LOADER)))


def tree_folder() -> Path:
    """The folder of ``kustomization.yaml``."""
    return crd_folder().parent


def objects_of(folder: Path, wanted: InstallOptions) -> list[Object]:
    """All objects, dependencies first. Raises ``ServingError`` if a component lacks a component that it requires."""
    (kustomization,) = _documents(folder / "kustomization.yaml")
    unknown = kustomization.keys() - _KNOWN_KEYS
    assert not unknown, f"kustomization.yaml has {unknown}, which only kubectl understands"
    images = _images(kustomization, wanted)
    namespace = wanted.namespace or kustomization["namespace"]
    base = [document for name in kustomization["resources"] for document in _documents(folder / name)]
    whole = with_components(folder, base, wanted.components)
    objects = [_adapted(resource, namespace=namespace, images=images) for resource in whole]
    for deployment in objects:
        if wanted.priority_class and deployment["kind"] == "Deployment":
            deployment["spec"]["template"]["spec"]["priorityClassName"] = wanted.priority_class
    if wanted.components:
        (space,) = (resource for resource in objects if resource["kind"] == "Namespace")
        space["metadata"].setdefault("annotations", {})[COMPONENTS_ANNOTATION] = ",".join(wanted.components)
    entries = {"config-controller": ("domain", wanted.domain)}
    entries["config-deployment"] = ("queue-sidecar-image", images.get(_QUEUE_PROXY, ""))
    for resource in objects:
        key, value = entries.get(resource["metadata"]["name"], ("", ""))
        if value and resource["kind"] == "ConfigMap":
            resource["data"][key] = value
    return sorted(objects, key=lambda resource: _rank(resource["kind"]))


def images_of(objects: Sequence[Object]) -> dict[str, str]:
    """The images of the daemons by Deployment name."""
    return {
        str(resource["metadata"]["name"]): str(container["image"])
        for resource in objects
        for container in _containers(resource)
    }


def image_problem(image: str) -> str:
    """The error message for an image name without a registry; "" for a name with a registry.

    Nodes would pull an image without a registry from a public one.
    """
    host, _, rest = image.partition("/")
    if rest and (host == _LOCAL or "." in host or ":" in host):
        return ""
    return f"{image!r} has no registry, so nodes would pull it from a public one; expected a name such as registry.example/{image}"


def is_unnamed(image: str) -> bool:
    """Whether an image has the name of the shipped images, which no registry has: nodes must import it."""
    return image.startswith(f"{_LOCAL}/")


def render(objects: list[Object]) -> str:
    """The objects as one YAML text."""
    return yaml.safe_dump_all(objects, sort_keys=False, width=120)


def path_of(resource: Object, *, is_whole: bool = False) -> str:
    """The API path of an object; with ``is_whole``, of all objects of its kind in its namespace."""
    version, kind, metadata = resource["apiVersion"], resource["kind"], resource["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = "" if kind in _WITHOUT_NAMESPACE else f"/namespaces/{metadata['namespace']}"
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    return f"{root}{where}/{plural}" + ("" if is_whole else f"/{metadata['name']}")


def kinds_of(objects: Sequence[Object], namespace: str) -> list[Object]:
    """The kinds of an installation, each as a nameless object in the namespace; without CRDs and namespaces."""
    versions = {resource["kind"]: resource["apiVersion"] for resource in objects} | _EARLIER_KINDS
    kinds = sorted(versions.keys() - {"Namespace", _CRD}, key=_rank)
    return [{"apiVersion": versions[kind], "kind": kind, "metadata": {"namespace": namespace}} for kind in kinds]


def is_ours(resource: Object) -> bool:
    """Whether this project created an object in a cluster."""
    label, value = OUR_LABEL
    return bool((resource["metadata"].get("labels") or {}).get(label) == value)


def _images(kustomization: Object, wanted: InstallOptions) -> dict[str, str]:
    """The image to install for each image name in the manifests.

    Images come from the registry of the options, if set. An image that is itself named in the options takes precedence.
    """
    tags = {image["name"]: image["newTag"] for image in kustomization["images"]}
    images = {name: f"{name}:{tag}" for name, tag in tags.items()}
    if wanted.registry:
        tags[_QUEUE_PROXY] = tags[_DAEMONS]
        images = {name: f"{wanted.registry.rstrip('/')}{name.removeprefix(_LOCAL)}:{tag}" for name, tag in tags.items()}
    named = {_DAEMONS: wanted.image, _QUEUE_PROXY: wanted.queue_proxy_image, _PLACEMENT: wanted.placement_image}
    return images | {name: image for name, image in named.items() if image}


def _rank(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _adapted(resource: Object, *, namespace: str, images: dict[str, str]) -> Object:
    adapted = copy.deepcopy(resource)
    if adapted["kind"] == "Namespace":
        adapted["metadata"]["name"] = namespace
    elif adapted["kind"] not in _WITHOUT_NAMESPACE:
        adapted["metadata"]["namespace"] = namespace
    for subject in adapted.get("subjects", ()):
        subject["namespace"] = namespace
    if params := adapted.get("spec", {}).get("paramRef"):
        params["namespace"] = namespace
    for container in _containers(adapted):
        container["image"] = images.get(container["image"], container["image"])
    return adapted


def _containers(resource: Object) -> Iterator[dict[str, Any]]:
    spec = resource.get("spec", {})
    template = spec.get("template", {}) if resource["kind"] in {"Deployment", "Job"} else {}
    yield from template.get("spec", {}).get("containers", ())
