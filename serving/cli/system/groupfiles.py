"""Reads node group files for ``serving config check``: Escalator's, NodeGroup manifests, config-nodegroup."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import yaml

from serving.cluster.kinds import NODE_GROUP
from serving.model.errors import Problem
from serving.nodegroup.groups import GroupReading, group_of, groups_of_text
from serving.settings.knob import ConfigMap

_MAP, _KEY = "config-nodegroup", "nodegroups_config.yaml"
_ROOT = "node_groups"


class GroupFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The number of node groups in files, their problems, and files of other kinds."""

    count: int
    problems: tuple[Problem, ...]
    others: tuple[Path, ...] = ()


def read_group_files(paths: Iterable[Path]) -> GroupFiles:
    """The files whose every document is about node groups. A file that cannot be read is left to the reader of ConfigMaps."""
    readings: list[GroupReading] = []
    others: list[Path] = []
    for path in paths:
        found = _reading_of(path)
        if found is None:
            others.append(path)
        else:
            readings += found
    return _summed(readings, others)


def groups_in_config_maps(config_maps: Sequence[ConfigMap]) -> GroupFiles:
    """The node groups in the ConfigMap of the daemon."""
    entries = [entry for one in config_maps if one.name == _MAP for entry in one.entries if entry.key == _KEY]
    return _summed([groups_of_text(entry.text, where=f"{entry.where}: {_KEY}") for entry in entries])


def _reading_of(path: Path) -> list[GroupReading] | None:
    """The node groups in a file; None unless the file is about node groups."""
    if path.is_dir():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    if not documents or not all(isinstance(one, Mapping) for one in documents):
        return None
    if len(documents) == 1 and _ROOT in documents[0]:
        return [groups_of_text(text, where=str(path))]
    if not all(
        (one.get("apiVersion"), one.get("kind")) == (NODE_GROUP.api_version, NODE_GROUP.name) for one in documents
    ):
        return None
    return [_placed(group_of(one), path) for one in documents]


def _placed(reading: GroupReading, path: Path) -> GroupReading:
    problems = [msgspec.structs.replace(one, where=f"{path}: {one.where}") for one in reading.problems]
    return GroupReading(groups=reading.groups, problems=tuple(problems))


def _summed(readings: Iterable[GroupReading], others: Iterable[Path] = ()) -> GroupFiles:
    readings = list(readings)
    return GroupFiles(
        count=sum(len(one.groups) for one in readings),
        problems=tuple(problem for one in readings for problem in one.problems),
        others=tuple(others),
    )
