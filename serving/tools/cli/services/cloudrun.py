"""Removes the Cloud Run parts of a manifest. Pure.

``gcloud run services describe --format export`` writes annotations and labels, an account of Google Cloud, and machine
selectors. The last two would prevent the creation of pods. One note names the removed parts. An ingress other than
``all`` has a meaning here too: the service stays off the public port.
"""

import msgspec

from serving.core.model.knative import CLUSTER_LOCAL, VISIBILITY_LABEL
from serving.core.model.objects import Object, object_at

_GROUPS = ("run.googleapis.com/", "cloud.googleapis.com/")
_TEXTS = ("annotations", "labels")
_INGRESS, _PUBLIC = "run.googleapis.com/ingress", "all"


class Portable(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest without Cloud Run's additions. ``left_out`` names each removed part."""

    body: Object
    left_out: tuple[str, ...] = ()


def without_cloud_run(service: Object) -> Portable:
    """The Service without the parts of Cloud Run. A manifest of another origin is returned unchanged."""
    spec = object_at(service, "spec")
    template = object_at(spec, "template")
    pod = object_at(template, "spec")
    account = pod.get("serviceAccountName")
    left_out: list[str] = []
    body = _without_keys(service, left_out)
    new_template = _without_keys(template, left_out)
    new_pod = dict(pod)
    if isinstance(account, str) and "@" in account:
        left_out.append(f"serviceAccountName {account}, which is an account of Google Cloud")
        del new_pod["serviceAccountName"]
    selector = object_at(pod, "nodeSelector")
    foreign = [key for key in selector if key.startswith(_GROUPS)]
    if foreign:
        left_out += [f"nodeSelector {key}" for key in foreign]
        new_pod["nodeSelector"] = {key: value for key, value in selector.items() if key not in foreign}
    if not left_out:
        return Portable(body=service)
    ingress = object_at(object_at(service, "metadata"), "annotations").get(_INGRESS, _PUBLIC)
    if ingress != _PUBLIC:
        metadata = object_at(body, "metadata")
        labels = {**object_at(metadata, "labels"), VISIBILITY_LABEL: CLUSTER_LOCAL}
        body = {**body, "metadata": {**metadata, "labels": labels}}
        left_out[left_out.index(_INGRESS)] = f"{_INGRESS} {ingress}, now the label {VISIBILITY_LABEL}: {CLUSTER_LOCAL}"
    new_spec = {**spec, "template": {**new_template, "spec": new_pod}}
    return Portable(body={**body, "spec": new_spec}, left_out=tuple(dict.fromkeys(left_out)))


def _without_keys(owner: Object, left_out: list[str]) -> Object:
    metadata = object_at(owner, "metadata")
    if not metadata:
        return owner
    changed = dict(metadata)
    for field in _TEXTS:
        texts = object_at(metadata, field)
        foreign = [key for key in texts if str(key).startswith(_GROUPS)]
        if foreign:
            left_out += foreign
            changed[field] = {key: text for key, text in texts.items() if key not in foreign}
    return {**owner, "metadata": changed}
