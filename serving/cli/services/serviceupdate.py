"""A partial change of a service's template, as ``serving update`` asks for it. Pure."""

import copy
from collections.abc import Mapping

import msgspec

from serving.model.errors import InvalidValue
from serving.model.knative import AUTOSCALING_GROUP, COMMAND_ANNOTATION
from serving.model.objects import Object


class ServiceUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What to change; None, "" and empty where nothing was asked for."""

    environment: Mapping[str, str] = {}
    removed: tuple[str, ...] = ()
    clear_env: bool = False
    command: str | None = None
    image: str | None = None
    concurrency: int | None = None
    timeout: int | None = None
    min_scale: int | None = None
    max_scale: int | None = None
    cpu: str | None = None
    memory: str | None = None
    annotations: Mapping[str, str] = {}


def updated(service: Object, wanted: ServiceUpdate) -> Object:
    """The service with the change. Raises ``InvalidValue`` if a variable that is to be removed does not exist."""
    changed = copy.deepcopy(service)
    template = changed["spec"].setdefault("template", {})
    metadata, spec = template.setdefault("metadata", {}), template.setdefault("spec", {})
    # A revision's name is used once.
    metadata.pop("name", None)
    annotations = metadata.setdefault("annotations", {})
    scaling = {"min-scale": wanted.min_scale, "max-scale": wanted.max_scale}
    texts = {f"{AUTOSCALING_GROUP}/{key}": str(count) for key, count in scaling.items() if count is not None}
    if wanted.command is not None:
        texts[COMMAND_ANNOTATION] = wanted.command
    for key, text in {**texts, **wanted.annotations}.items():
        if text:
            annotations[key] = text
        else:
            annotations.pop(key, None)
    for field, number in (("containerConcurrency", wanted.concurrency), ("timeoutSeconds", wanted.timeout)):
        if number is not None:
            spec[field] = number
    container = spec["containers"][0]
    if wanted.image is not None:
        container["image"] = wanted.image
    container["env"] = _environment(container.get("env") or [], wanted)
    limits = {key: text for key, text in (("cpu", wanted.cpu), ("memory", wanted.memory)) if text is not None}
    if limits:
        resources = container.setdefault("resources", {})
        resources["limits"] = {**resources.get("limits", {}), **limits}
    return changed


def _environment(before: list[Object], wanted: ServiceUpdate) -> list[Object]:
    kept = {} if wanted.clear_env else {one["name"]: one for one in before}
    for name in wanted.removed:
        if name not in kept:
            expected = f"one of its variables: {', '.join(sorted(kept)) or 'it has none'}"
            raise InvalidValue(text=name, expected=expected)
        del kept[name]
    return [*{**kept, **{name: {"name": name, "value": text} for name, text in wanted.environment.items()}}.values()]
