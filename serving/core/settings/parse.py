"""Parses ConfigMap files: YAML text to entries with line numbers.

Nothing is guessed. Content that Kubernetes would reject (a value that is not text, a duplicate key) is reported here
too, so that a file that works on one machine also works on a cluster. ``_example`` is skipped, as Knative skips it.
"""

from collections.abc import Iterator

import yaml

from serving.core.model.errors import Problem
from serving.core.settings.knob import ConfigMap, ConfigMapEntry

EXAMPLE_KEY = "_example"
_TEXT_TAG = "tag:yaml.org,2002:str"
_NULL_TAG = "tag:yaml.org,2002:null"


def read_config_maps(text: str, file_name: str) -> tuple[list[ConfigMap], list[Problem]]:
    """Parse all ConfigMaps in a YAML text of one or more documents, with all problems."""
    problems: list[Problem] = []
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        what = f"not YAML: {error.problem}"
        return [], [Problem(where=f"{file_name}:{line}", what=what, expected="a ConfigMap")]
    except yaml.YAMLError as error:
        return [], [Problem(where=file_name, what=f"not YAML: {error}", expected="a ConfigMap")]
    config_maps = [_read_document(node, file_name, problems) for node in documents]
    return [config_map for config_map in config_maps if config_map], problems


def _read_document(node: yaml.Node, file_name: str, problems: list[Problem]) -> ConfigMap | None:
    where = _place(node, file_name)
    top = dict(_pairs(node, file_name, problems))
    kind = _text_of(top.get("kind"))
    name = _text_of(dict(_pairs(top.get("metadata"), file_name, problems)).get("name"))
    if kind != "ConfigMap" or not name:
        what = "a ConfigMap without metadata.name" if kind == "ConfigMap" else f"kind is {kind or 'missing'}"
        problems.append(Problem(where=where, what=what, expected="kind: ConfigMap with a metadata.name"))
        return None
    data = top.get("data")
    if data is not None and not isinstance(data, yaml.MappingNode) and data.tag != _NULL_TAG:
        problems.append(Problem(where=_place(data, file_name), what="data is not a mapping", expected="key: text"))
    entries = tuple(_entries(data, file_name, problems))
    return ConfigMap(name=name, where=where, entries=entries)


def _entries(node: yaml.Node | None, file_name: str, problems: list[Problem]) -> Iterator[ConfigMapEntry]:
    for key, value in _pairs(node, file_name, problems):
        if key == EXAMPLE_KEY:
            continue
        where = _place(value, file_name)
        if isinstance(value, yaml.ScalarNode) and value.tag == _TEXT_TAG:
            yield ConfigMapEntry(key=key, text=value.value, where=where)
            continue
        shown = value.value if isinstance(value, yaml.ScalarNode) else "a list or mapping"
        expected = f'text, as in {key}: "{shown}"' if isinstance(value, yaml.ScalarNode) else "text"
        problems.append(Problem(where=where, what=f"{key}: {shown} is not text", expected=expected))


def _pairs(node: yaml.Node | None, file_name: str, problems: list[Problem]) -> Iterator[tuple[str, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, str] = {}
    for key_node, value in node.value:
        key = str(key_node.value)
        if key in seen:
            what = f"{key} is written twice, first at {seen[key]}"
            problems.append(Problem(where=_place(key_node, file_name), what=what, expected="each key once"))
            continue
        seen[key] = _place(key_node, file_name)
        yield key, value


def _text_of(node: yaml.Node | None) -> str:
    return node.value if isinstance(node, yaml.ScalarNode) else ""


def _place(node: yaml.Node, file_name: str) -> str:
    return f"{file_name}:{node.start_mark.line + 1}"
