"""``serving backup`` on a cluster.

The file has the users' objects as manifests for ``serving apply -f`` and kubectl: services, objects that their specs
name, and settings.
"""

import os
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click
import yaml

from serving.core.model.errors import ServingError
from serving.core.model.knative import CREATOR_ANNOTATION, LAST_APPLIED_ANNOTATION, LAST_MODIFIER_ANNOTATION
from serving.core.model.objects import Object, annotations_of, labels_of, name_of, namespace_of, nested
from serving.core.settings.parse import EXAMPLE_KEY
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import (
    CLUSTER_DOMAIN_CLAIM,
    CONFIG_MAP,
    CONFIGURATION,
    DOMAIN_MAPPING,
    NAMESPACE,
    NODE_GROUP,
    PERSISTENT_VOLUME_CLAIM,
    ROUTE,
    SCALED_WORKLOAD,
    SCALING_POLICY,
    SECRET,
    SERVICE_ACCOUNT,
    SERVING_SERVICE,
    Kind,
)
from serving.tools.cli.client.api import ApiClient, message_of
from serving.tools.cli.client.resources import path_of

# Objects without dependencies come first.
_OURS = (
    CLUSTER_DOMAIN_CLAIM,
    SCALING_POLICY,
    NODE_GROUP,
    SCALED_WORKLOAD,
    SERVING_SERVICE,
    CONFIGURATION,
    ROUTE,
    DOMAIN_MAPPING,
)
_METADATA = ("name", "namespace", "labels", "annotations")
# Written by the server: another user restores the file.
_SERVERS = {LAST_APPLIED_ANNOTATION, CREATOR_ANNOTATION, LAST_MODIFIER_ANNOTATION}
# Fields of a pod's spec that name an object of the namespace, by the object's kind.
_REFERENCES: dict[str, tuple[Kind, str]] = {
    "configMapRef": (CONFIG_MAP, "name"),
    "configMapKeyRef": (CONFIG_MAP, "name"),
    "configMap": (CONFIG_MAP, "name"),
    "secretRef": (SECRET, "name"),
    "secretKeyRef": (SECRET, "name"),
    "secret": (SECRET, "secretName"),
    "imagePullSecrets": (SECRET, "name"),
    "persistentVolumeClaim": (PERSISTENT_VOLUME_CLAIM, "claimName"),
    "tls": (SECRET, "secretName"),
}


def write_cluster_backup(api: ApiClient, file: Path) -> None:
    """Write the manifests to a new file. Raises ``ServingError``, for example if an object may not be read."""
    manifests = [as_manifest(resource) for resource in _saved(api)]
    text = yaml.safe_dump_all(manifests, sort_keys=False, width=120)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ServingError(f"{file} is there already; name a new file") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    counts: dict[str, int] = {}
    for manifest in manifests:
        counts[manifest["kind"]] = counts.get(manifest["kind"], 0) + 1
    click.echo(f"{file}: {', '.join(f'{count} {kind}' for kind, count in counts.items()) or 'nothing is there'}")
    click.echo("`serving apply -f` restores it; revisions are created again, and traffic that names one waits for it")


def as_manifest(resource: Object) -> Object:
    """An object without the server's additions."""
    metadata = {name: resource["metadata"][name] for name in _METADATA if resource["metadata"].get(name)}
    if annotations := {key: text for key, text in annotations_of(resource).items() if key not in _SERVERS}:
        metadata["annotations"] = annotations
    else:
        metadata.pop("annotations", None)
    rest = {key: value for key, value in resource.items() if key not in {"metadata", "status"}}
    return {"apiVersion": rest.pop("apiVersion"), "kind": rest.pop("kind"), "metadata": metadata, **rest}


def _saved(api: ApiClient) -> Iterator[Object]:
    ours = [
        resource
        for kind in _OURS
        for resource in _items(api, kind, None)
        if not resource["metadata"].get("ownerReferences")
    ]
    namespaces = sorted({namespace_of(resource) for resource in ours if resource["metadata"].get("namespace")})
    for namespace in namespaces:
        labels = labels_of(api.peek(path_of(NAMESPACE, None, namespace)))
        labels.pop("kubernetes.io/metadata.name", None)
        metadata = {"name": namespace, **({"labels": labels} if labels else {})}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    for config_map in _items(api, CONFIG_MAP, system_namespace()):
        data = {key: text for key, text in (config_map.get("data") or {}).items() if key != EXAMPLE_KEY}
        if name_of(config_map).startswith("config-") and data:
            yield {**config_map, "data": data}
    for kind, namespace, name in sorted(
        set(_references(ours)), key=lambda reference: (reference[0].name, *reference[1:])
    ):
        status, response = api.call("GET", path_of(kind, namespace, name))
        if status < HTTPStatus.BAD_REQUEST:
            yield response
        elif status != HTTPStatus.NOT_FOUND:
            raise ServingError(message_of(response))
    yield from ours


def _references(objects: Iterable[Object]) -> Iterator[tuple[Kind, str, str]]:
    """The users' objects that specs refer to: kind, namespace, name."""
    for resource in objects:
        namespace = namespace_of(resource)
        account = str(nested(resource, "spec", "template", "spec", "serviceAccountName") or "default")
        if account != "default":
            yield SERVICE_ACCOUNT, namespace, account
        for kind, name in _named(resource.get("spec")):
            yield kind, namespace, name


def _named(value: Any) -> Iterator[tuple[Kind, str]]:  # noqa: ANN401 - JSON
    if isinstance(value, list):
        for item in value:
            yield from _named(item)
    if not isinstance(value, dict):
        return
    for field, inner in value.items():
        kind, key = _REFERENCES.get(field, (None, ""))
        for item in inner if isinstance(inner, list) else [inner]:
            if kind is not None and isinstance(item, dict) and item.get(key):
                yield kind, str(item[key])
        yield from _named(inner)


def _items(api: ApiClient, kind: Kind, namespace: str | None) -> list[Object]:
    status, response = api.call("GET", path_of(kind, namespace))
    if status == HTTPStatus.NOT_FOUND:
        return []
    if status >= HTTPStatus.BAD_REQUEST:
        raise ServingError(message_of(response))
    return [{"apiVersion": kind.api_version, "kind": kind.name, **item} for item in response["items"]]
