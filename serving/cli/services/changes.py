"""What an object becomes by applying a manifest: the patch that brings it about, and what has changed in words.

Three sides decide: what was applied last (kept in kubectl's own annotation, so that both tools may take turns), what is
there, and what is wanted. What was applied and is no longer wanted goes; what others have set stays. Pure.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from serving.home.schemas.patch import same_json
from serving.model.objects import Object

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SHOWN_LENGTH_MAX = 60
# What the server keeps, which says nothing about what was asked for.
_SERVERS_OWN = {"resourceVersion", "generation", "uid", "creationTimestamp", "managedFields", "selfLink"}

# JSON values come as they are.
# ruff: noqa: ANN401


def with_last_applied(body: Object) -> Object:
    """The manifest with itself in its annotation, as ``kubectl apply`` sends it."""
    # What an export brings along belongs to the object that it was taken from.
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in _SERVERS_OWN}
    annotations = {key: text for key, text in (metadata.get("annotations") or {}).items() if key != LAST_APPLIED}
    plain = {**body, "metadata": {**metadata, "annotations": annotations} if annotations else _without(metadata)}
    plain.pop("status", None)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":")) + "\n"
    return {**plain, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED: text}}}


def patch_between(wanted: Object, live: Object) -> Object:
    """The JSON merge patch by which ``live`` becomes what is ``wanted``, which is ``with_last_applied``; {} for none."""
    try:
        last = json.loads(((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED, "{}"))
    except (ValueError, AttributeError):
        # Not written by an apply: then nothing is known to have been applied.
        last = {}
    patch = _merged(last if isinstance(last, dict) else {}, wanted, live)
    return {key: value for key, value in patch.items() if key not in {"apiVersion", "kind", "status"}}


def changed_fields(before: Object, after: Object) -> list[str]:
    """A line for each field that differs, but for the server's own: "spec.a: 1 → 2"."""
    return [
        f"{path}: {_shown(old)} → {_shown(new)}"
        for path, old, new in _differences(before, after, "")
        if not path.startswith("status") and LAST_APPLIED not in path and not _is_servers_own(path)
    ]


def _is_servers_own(path: str) -> bool:
    """Whether the server sets a field: "metadata.managedFields[0].time", "metadata.ownerReferences[0].uid"."""
    parts = re.split(r"[.\[]", path)
    return parts[-1] in _SERVERS_OWN or (parts[0] == "metadata" and not _SERVERS_OWN.isdisjoint(parts[1:2]))


def _without(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != "annotations"}


def _merged(last: dict[str, Any], wanted: dict[str, Any], live: dict[str, Any]) -> Object:
    patch: Object = {key: None for key in last if key not in wanted and key in live}
    for key, value in wanted.items():
        there = live.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            before = last.get(key)
            inner = _merged(before if isinstance(before, dict) else {}, value, there)
            if inner:
                patch[key] = inner
        elif value is not None and not same_json(value, there):
            patch[key] = value
    return patch


def _differences(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            inner = f"[{key}]" if "/" in key or "." in key else f".{key}"
            yield from _differences(before.get(key), after.get(key), (path + inner).removeprefix("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, f"{path}[{number}]")
    elif not same_json(before, after):
        yield path, before, after


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[: _SHOWN_LENGTH_MAX - 3]}..."
