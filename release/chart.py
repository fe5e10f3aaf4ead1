"""Writes the Helm chart.

Its source is the tree of ``serving install``. A condition is around the additions of each component.

Every object is rendered from ``config/`` as the command renders it: once plain, and once with each component and with
each value that changes the shape of an object. Where two differ, the template has a condition. What stands for a value
of the user is a word in between, which becomes a template expression.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from serving.core.model.errors import ServingError
from serving.core.settings.daemons import DAEMONS
from serving.core.settings.render import config_map_names
from serving.tools.cli.client.tree import OPTIONAL_KINDS, InstallOptions, component_names, objects_of

Object = dict[str, Any]
Json = Any
_Key = tuple[str, str, str]

_CRD = "CustomResourceDefinition"
_WORDS = {
    "@image@": '{{ include "serving.image" (list . "serving") }}',
    "@queue-proxy@": '{{ include "serving.image" (list . "serving-queue-proxy") }}',
    "@placement@": '{{ include "serving.image" (list . "serving-placement") }}',
    "@namespace@": "{{ .Release.Namespace }}",
    "@domain@": "{{ .Values.domain }}",
    "@priority@": "{{ .Values.priorityClassName }}",
}
_PLAIN = InstallOptions(
    image="@image@", queue_proxy_image="@queue-proxy@", placement_image="@placement@", namespace="@namespace@"
)
_HELPERS = """{{- /* An image: its own value, else its name and the version in the registry. */ -}}
{{- define "serving.image" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- with index $root.Values.images $name -}}{{ . }}
{{- else -}}
{{ required "registry: name the registry and path of the images, such as registry.example/team" $root.Values.registry | trimSuffix "/" }}/{{ $name }}:{{ $root.Values.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}
"""


class Variant(NamedTuple):
    """A part under a condition: what the object is without it, and with it. None is no such object."""

    condition: str
    before: Json
    after: Json


def chart_version(number: str) -> str:
    """The version of a release as Helm takes it: 0.2.0.dev531+gecfa0493 is 0.2.0-dev.531+gecfa0493."""
    return number.replace(".dev", "-dev.")


def chart_files(folder: Path, version: str, *, image_tag: str) -> dict[str, str]:
    """The files of the chart by their paths in it.

    ``folder`` is ``config/``, ``image_tag`` the version of the images.
    """
    names = component_names(folder)
    needs = {name: _needs(folder, name, names) for name in names}
    pairs = [
        (
            f".Values.components.{_camel(name)}",
            _objects(folder, components=before),
            _objects(folder, components=(*before, name)),
        )
        for name, before in needs.items()
    ]
    plain, everything = _objects(folder), _objects(folder, components=names)
    pairs += [
        (".Values.priorityClassName", everything, _objects(folder, components=names, priority_class="@priority@")),
        (".Values.domain", everything, _objects(folder, components=names, domain="@domain@")),
    ]
    keys = list(dict.fromkeys([*plain, *(key for _, _, after in pairs for key in after)]))
    texts: dict[str, list[str]] = {}
    for key in keys:
        variants = [Variant(condition, before.get(key), after.get(key)) for condition, before, after in pairs]
        texts.setdefault(_file_of(key), []).append(_template(key, plain.get(key), variants))
    metadata = {
        "apiVersion": "v2",
        "name": "serving",
        "description": "Request-driven serverless: HTTP traffic decides how many pods run",
        "type": "application",
        "version": version,
        "appVersion": image_tag,
        "kubeVersion": ">=1.30.0-0",
    }
    return {
        "Chart.yaml": yaml.safe_dump(metadata, sort_keys=False, width=120),
        "values.yaml": _values(names),
        "templates/_helpers.tpl": _HELPERS,
        "templates/validate.yaml": "".join(_validations(needs)),
        **{f"templates/{name}.yaml": "---\n".join(parts) for name, parts in sorted(texts.items())},
    }


def _needs(folder: Path, name: str, names: Sequence[str]) -> tuple[str, ...]:
    """The components that another needs."""
    for before in ((), *((other,) for other in names if other != name)):
        try:
            _objects(folder, components=(*before, name))
        except ServingError:
            continue
        return before
    raise AssertionError(f"component {name} needs more than one other")


def _objects(folder: Path, **changes: Json) -> dict[_Key, Object]:
    objects = objects_of(
        folder, InstallOptions(**{**{field: getattr(_PLAIN, field) for field in _PLAIN.__struct_fields__}, **changes})
    )
    # Helm makes the namespace, and knows what it has installed.
    return {_key(each): each for each in objects if each["kind"] != "Namespace"}


def _key(resource: Object) -> _Key:
    return resource["kind"], resource["metadata"].get("namespace", ""), resource["metadata"]["name"]


def _file_of(key: _Key) -> str:
    kind = key[0]
    if kind == _CRD:
        return "definitions"
    if kind in {"Deployment", "Service", "PodDisruptionBudget"}:
        return "daemons"
    return {"ConfigMap": "settings"}.get(
        kind, "policies" if "Policy" in kind else "rights" if "Role" in kind or kind == "ServiceAccount" else "more"
    )


def _template(key: _Key, plain: Object | None, variants: Sequence[Variant]) -> str:
    owner = next((each for each in variants if plain is None and each.before is None and each.after is not None), None)
    base: Object = plain if plain is not None else owner.after if owner else {}
    changed = [each for each in variants if each is not owner and each.before != each.after]
    if key[0] == _CRD:
        base = {**base, "metadata": {**base["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}}}
    lines = list(_lines(base, changed, indent=0))
    if key[0] == "ConfigMap" and key[2] in config_map_names(DAEMONS):
        lines += [f'{{{{- with index .Values.config "{key[2]}" }}}}', "{{ toYaml . | indent 2 }}", "{{- end }}"]
    text = "".join(f"{line}\n" for line in lines)
    conditions = [*([".Values.definitions"] if key[0] == _CRD else []), *([owner.condition] if owner else [])]
    condition = " ".join(["and", *conditions] if len(conditions) > 1 else conditions)
    if key[0] in OPTIONAL_KINDS:
        condition = f'.Capabilities.APIVersions.Has "{base["apiVersion"]}/{key[0]}"'
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


def _lines(value: Json, variants: Sequence[Variant], *, indent: int) -> Iterator[str]:
    """The lines of a mapping or a list in block style; ``variants`` are those that change it."""
    if isinstance(value, dict):
        yield from _mapping_lines(value, variants, indent=indent)
    else:
        yield from _list_lines(value, variants, indent=indent)


def _mapping_lines(value: Object, variants: Sequence[Variant], *, indent: int) -> Iterator[str]:
    for key, inner in value.items():
        below = [Variant(each.condition, each.before.get(key), each.after.get(key)) for each in variants]
        yield from _entry(
            f"{' ' * indent}{_scalar(key)}:",
            inner,
            [each for each in below if each.before != each.after],
            indent=indent + 2,
        )
    for each in variants:
        for key in sorted(each.after.keys() - each.before.keys()):
            yield from _conditional(
                each, _entry(f"{' ' * indent}{_scalar(key)}:", each.after[key], (), indent=indent + 2)
            )


def _list_lines(value: list[Json], variants: Sequence[Variant], *, indent: int) -> Iterator[str]:
    for item in value:
        below = [Variant(each.condition, _find(item, each.before), _find(item, each.after)) for each in variants]
        yield from _item(item, [each for each in below if each.before != each.after], indent=indent)
    for each in variants:
        for item in each.after:
            if _find(item, each.before) is None:
                yield from _conditional(each, _item(item, (), indent=indent))


def _find(item: Json, items: list[Json]) -> Json:
    """The item of a list that has the name of another, or is equal; None without one."""
    if isinstance(item, dict) and "name" in item:
        return next((other for other in items if isinstance(other, dict) and other.get("name") == item["name"]), None)
    return item if item in items else None


def _extends(value: Json, variants: Sequence[Variant]) -> bool:
    """Whether each variant changes, adds or removes parts of a mapping or list, so that conditions can be within it."""
    if not isinstance(value, dict | list) or not value:
        return False
    if isinstance(value, list):
        return all(_find(item, each.after) is not None for item in value for each in variants)
    return all(isinstance(each.after, dict) for each in variants)


def _item(item: Json, variants: Sequence[Variant], *, indent: int) -> Iterator[str]:
    if not isinstance(item, dict | list) or not item:
        yield from _entry(f"{' ' * indent}-", item, variants, indent=indent + 2)
        return
    first, *rest = _lines(item, variants, indent=indent + 2)
    assert not first.lstrip().startswith("{{"), "a condition cannot begin an item"
    yield f"{' ' * indent}- {first.lstrip()}"
    yield from rest


def _entry(head: str, value: Json, variants: Sequence[Variant], *, indent: int) -> Iterator[str]:
    if isinstance(value, dict | list) and value and (not variants or _extends(value, variants)):
        yield head
        yield from _lines(value, variants, indent=indent)
    elif not variants:
        first, *rest = _scalar(value, indent=indent).split("\n")
        yield f"{head} {first}"
        yield from rest
    else:
        for place, each in enumerate(variants):
            yield f"{{{{- {'else if' if place else 'if'} {each.condition} }}}}"
            if each.after is not None:
                yield from _entry(head, each.after, (), indent=indent)
        yield "{{- else }}"
        yield from _entry(head, value, (), indent=indent)
        yield "{{- end }}"


def _conditional(variant: Variant, lines: Iterator[str]) -> Iterator[str]:
    yield f"{{{{- if {variant.condition} }}}}"
    yield from lines
    yield "{{- end }}"


def _scalar(value: Json, *, indent: int = 0) -> str:
    """A value as YAML whose braces the template engine leaves alone."""
    if isinstance(value, str) and "\n" in value:
        out = io.StringIO()
        yaml.safe_dump(value, out, default_style="|", width=10_000)
        head, *rest = out.getvalue().rstrip("\n").split("\n") if not value.endswith("\n\n") else (json.dumps(value),)
        text = "\n".join([head, *(f"{' ' * indent}{line.removeprefix('  ')}" if line else "" for line in rest)])
    else:
        text = json.dumps(value, ensure_ascii=False)
    text = text.replace("{{", '{{ "{{" }}')
    for word, expression in _WORDS.items():
        text = text.replace(word, expression)
    return text


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(part.capitalize() for part in rest)


def _validations(needs: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, others in needs.items():
        for other in others:
            yield f"{{{{- if and .Values.components.{_camel(name)} (not .Values.components.{_camel(other)}) }}}}\n"
            yield f'{{{{- fail "components.{_camel(name)} needs components.{_camel(other)} too" }}}}\n{{{{- end }}}}\n'


def _values(names: Sequence[str]) -> str:
    components = "".join(f"  {_camel(name)}: false\n" for name in names)
    return f"""# Registry and path of the images, such as registry.example/team. Required, unless each image is named below.
registry: ""
# The version of the images; empty is the chart's.
tag: ""
images:
  serving: ""
  serving-queue-proxy: ""
  serving-placement: ""
# Domain of public hosts, such as apps.example.org.
domain: ""
# PriorityClass of all daemons.
priorityClassName: ""
# Whether the chart has the definitions; they stay when it is uninstalled.
definitions: true
# Settings by ConfigMap, such as {{config-autoscaler: {{stable-window: 90s}}}}. Each ConfigMap explains its keys in _example.
config: {{}}
# The folders of config/components.
components:
{components}"""
