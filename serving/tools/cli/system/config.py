"""``serving config``: shows settings in force with their origin, checks files, prints defaults.

Settings in force come from the store and from the environments of running daemons. Exit code 2 means invalid settings;
then each problem is one line on standard error.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from serving.core.model.errors import Problem, ServingError, SettingsError
from serving.core.model.launch import USAGE_EXIT
from serving.core.model.objects import name_of
from serving.core.settings.daemons import DAEMONS
from serving.core.settings.knob import ConfigMap, SettingsRecord
from serving.core.settings.load import (
    Daemon,
    Loaded,
    in_reading_order,
    known_entries,
    load,
    removed_keys,
    unknown_config_maps,
    unknown_keys,
)
from serving.core.settings.parse import read_config_maps
from serving.core.settings.policies import render_policies
from serving.core.settings.render import config_map_names, render_config_map, render_page
from serving.core.settings.yamltext import YamlLoader
from serving.home.processes.process_lifetime import children_of, environment_of
from serving.home.state import default_state_path
from serving.net.aio.inputfile import read_input_text
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import CONFIG_MAP, NODE_GROUP
from serving.net.metrics.names import render_page as render_metrics_page
from serving.nodes.nodegroup.groups import GroupReading, group_of, groups_of_text
from serving.tools.cli.client.api import ApiClient, Place, place_options
from serving.tools.cli.client.checks import holder_of
from serving.tools.cli.client.objects import items_of
from serving.tools.cli.client.output import aligned, counted, output_option, print_aside, shortened
from serving.tools.cli.system.clusterstatus import daemon_deployments

_MAP, _KEY = "config-nodegroup", "nodegroups_config.yaml"
_ROOT = "node_groups"

NOT_LIVE = frozenset({"dashboard", "placement", "queueproxy"})
"""Daemons that read their settings from the environment only."""
# The process of `serving up` with the settings of a daemon.
_MODULES = {
    "activator": "serving.activator.main",
    "autoscaler": "serving.autoscaler.main",
    "controller": "serving.home.main",
    "dashboard": "serving.tools.dashboard.main",
    "election": "serving.home.main",
}

# A value as printed by `serving config defaults` and accepted in a ConfigMap.
_FIELDS = {"DAEMON": "daemon", "CONFIGMAP": "config_map", "KEY": "key", "VALUE": "written", "FROM": "origin"}
# Narrower screens have no space for the name of the ConfigMap.
_WIDE = 120
# Columns to shorten on narrow screens, in this order, and their minimum widths.
_LEASTS = (("VALUE", 24), ("FROM", 24), ("VALUE", 12), ("FROM", 12), ("KEY", 20))
# The width for a pipe, which is also the maximum: longer lines are hard to read.
_SCREEN = (160, 24)
_BY_NAME = {daemon.name: daemon for daemon in DAEMONS}

_files = click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))


class GroupFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The number of node groups in files, their problems, unused keys, and files of other kinds."""

    count: int
    problems: tuple[Problem, ...]
    ignored: tuple[Problem, ...]
    others: tuple[Path, ...] = ()


def read_group_files(paths: Iterable[Path]) -> GroupFiles:
    """Read the files that only have node groups. Unreadable files are reported by the reader of ConfigMaps."""
    readings: list[GroupReading] = []
    others: list[Path] = []
    for path in paths:
        group_readings = _reading_of(path)
        if group_readings is None:
            others.append(path)
        else:
            readings += group_readings
    return _summed(readings, others)


def groups_in_config_maps(config_maps: Sequence[ConfigMap]) -> GroupFiles:
    """The node groups in the ConfigMap of the nodegroup daemon."""
    entries = [
        entry
        for config_map in config_maps
        if config_map.name == _MAP
        for entry in config_map.entries
        if entry.key == _KEY
    ]
    return _summed([groups_of_text(entry.text, where=f"{entry.where}: {_KEY}") for entry in entries])


def _reading_of(path: Path) -> list[GroupReading] | None:
    """The node groups in a file; None for a file without node groups."""
    if path.is_dir():
        return None
    try:
        text = read_input_text(path)
        documents = [document for document in yaml.load_all(text, Loader=YamlLoader) if document is not None]
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError):
        return None
    if not documents or not all(isinstance(document, Mapping) for document in documents):
        return None
    if len(documents) == 1 and _ROOT in documents[0]:
        return [groups_of_text(text, where=str(path))]
    if not all(
        (document.get("apiVersion"), document.get("kind")) == (NODE_GROUP.api_version, NODE_GROUP.name)
        for document in documents
    ):
        return None
    return [_placed(group_of(document), path) for document in documents]


def _placed(reading: GroupReading, path: Path) -> GroupReading:
    problems, ignored = (
        tuple(msgspec.structs.replace(problem, where=f"{path}: {problem.where}") for problem in listed)
        for listed in (reading.problems, reading.ignored)
    )
    return GroupReading(groups=reading.groups, problems=problems, ignored=ignored)


def _summed(readings: Iterable[GroupReading], others: Iterable[Path] = ()) -> GroupFiles:
    readings = list(readings)
    return GroupFiles(
        count=sum(len(reading.groups) for reading in readings),
        problems=tuple(problem for reading in readings for problem in reading.problems),
        ignored=tuple(problem for reading in readings for problem in reading.ignored),
        others=tuple(others),
    )


class LiveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The ConfigMaps and their problems, and the environments of running daemons.

    ``config_maps`` omit keys that no daemon reads, each of which is a problem in ``ignored``.
    """

    config_maps: Sequence[ConfigMap]
    problems: Sequence[Problem]
    ignored: Sequence[Problem]
    environments: Mapping[str, Mapping[str, str]]

    def maps_of(self, daemon: str) -> Sequence[ConfigMap]:
        """The ConfigMaps that a daemon watches."""
        return () if daemon in NOT_LIVE else self.config_maps


def read_live_config(api: ApiClient) -> LiveConfig:
    """Read the settings from the store, and from the processes of this machine or the Deployments of a cluster."""
    namespace = system_namespace(os.environ)
    config_maps: list[ConfigMap] = []
    problems: list[Problem] = []
    for config_map in items_of(api.within(namespace), CONFIG_MAP):
        if name_of(config_map).startswith("config-"):
            read_maps, wrong = read_config_maps(json.dumps(config_map), f"ConfigMap {namespace}/{name_of(config_map)}")
            config_maps += read_maps
            problems += wrong
    environments = _cluster_environments(api) if api.state_path is None else _environments(api.state_path)
    ignored = [
        problem
        for config_map in config_maps
        for problem in (*unknown_keys(config_map, DAEMONS), *removed_keys(config_map, DAEMONS))
    ]
    known = [
        msgspec.structs.replace(config_map, entries=known_entries(config_map, DAEMONS)) for config_map in config_maps
    ]
    return LiveConfig(config_maps=known, problems=problems, ignored=ignored, environments=environments)


def _cluster_environments(api: ApiClient) -> dict[str, dict[str, str]]:
    """The environment of each daemon; empty if the user may not list Deployments, or the API has none."""
    environments: dict[str, dict[str, str]] = {}
    with contextlib.suppress(ServingError):
        for deployment in daemon_deployments(api):
            containers = deployment["spec"]["template"]["spec"]["containers"]
            variables = [variable for container in containers for variable in container.get("env") or ()]
            environments[name_of(deployment)] = {
                variable["name"]: variable["value"] for variable in variables if "value" in variable
            }
    return {**environments, "election": environments.get("controller", {})}


def _environments(state: Path) -> dict[str, dict[str, str]]:
    holder = holder_of(state)
    if holder is None:
        return {}
    by_module: dict[str, dict[str, str]] = {}
    for pid in children_of(holder):
        module = _module_of(pid)
        if module and module not in by_module:
            by_module[module] = dict(text.split("=", 1) for text in environment_of(pid) if "=" in text)
    return {daemon: by_module[module] for daemon, module in _MODULES.items() if module in by_module}


def _module_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""


@click.group()
def config() -> None:
    """Show, check and print settings."""


@config.command()
@click.argument("names", metavar="[DAEMON]...", nargs=-1, type=click.Choice(sorted(_BY_NAME)))
@click.option(
    "--config",
    "files",
    multiple=True,
    metavar="FILE|DIR",
    type=click.Path(exists=True, path_type=Path),
    help="File with ConfigMaps to read, or folder of config-*.yaml files.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="DAEMON.FIELD=VALUE", help="Set a field, as the daemon's own flag does."
)
@output_option("table", "json")
@place_options
def show(
    *, place: Place, names: tuple[str, ...], files: tuple[Path, ...], settings: tuple[str, ...], output: str
) -> None:
    """Print each setting and the origin of its value; -o json does not shorten long values.

    If a system is running, these are the settings that its daemons use now: the ConfigMaps in its store and the
    environment of its processes. With --config or --set, or without a running system, they are those of a daemon
    started here.
    """
    names = names or tuple(sorted(_BY_NAME))
    live = None if files or settings else _live(place)
    if live is None:
        config_maps, problems = _read(files)
        flags = _flags(settings, problems)
        loaded = {
            name: _load(_BY_NAME[name], config_maps, flags=flags.get(name, {}), problems=problems) for name in names
        }
        _exit_with(problems)
    else:
        loaded = _load_live(names, live)
    rows = [row for name, settings in loaded.items() if settings for row in _rows(_BY_NAME[name], settings)]
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    width = min(_SCREEN[0], shutil.get_terminal_size(_SCREEN).columns)
    columns = [name for name in _FIELDS if width >= _WIDE or name != "CONFIGMAP"]
    texts = [columns, *([row[_FIELDS[name]] for name in columns] for row in rows)]
    leasts = [(columns.index(name), least) for name, least in _LEASTS]
    click.echo("\n".join(aligned(shortened(texts, width, leasts))))


@config.command()
@_files
def check(files: tuple[Path, ...]) -> None:
    """Check ConfigMaps and files of node groups; print each problem on a line and exit with 2 if there are any.

    A file of node groups has Escalator's format, or contains NodeGroup manifests. The groups in the ConfigMap
    config-nodegroup are also checked.
    """
    groups = read_group_files(files)
    config_maps, problems = _read(groups.others)
    for daemon in DAEMONS:
        _load(daemon, config_maps, flags={}, problems=problems, environment={})
    in_maps = groups_in_config_maps(config_maps)
    for ignored in (*groups.ignored, *in_maps.ignored):
        print_aside(f"warning: {ignored}")
    _exit_with([*problems, *groups.problems, *in_maps.problems])
    count = groups.count + in_maps.count
    fine = [counted(len(config_maps), "ConfigMap")] if config_maps or not count else []
    click.echo(" and ".join([*fine, *([counted(count, "node group")] if count else [])]) + " fine")


@config.command()
@click.argument("name", required=False, type=click.Choice(config_map_names(DAEMONS)))
@click.option("--page", is_flag=True, help="Print the documentation page instead.")
@click.option("--policies", is_flag=True, help="Print the admission policies for annotations instead.")
@click.option(
    "--write",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write each ConfigMap to a file in this folder instead.",
)
def defaults(name: str | None, write: Path | None, *, page: bool, policies: bool) -> None:
    """Print the ConfigMaps with every key, its default and its explanation."""
    if policies:
        click.echo(render_policies(), nl=False)
        return
    if page:
        click.echo(render_page(DAEMONS), nl=False)
        return
    names = [name] if name else config_map_names(DAEMONS)
    texts = {map_name: render_config_map(map_name, DAEMONS) for map_name in names}
    if write:
        write.mkdir(parents=True, exist_ok=True)
        for map_name, text in texts.items():
            (write / f"{map_name}.yaml").write_text(text, encoding="utf-8")
        return
    click.echo("---\n".join(texts.values()), nl=False)


@config.command()
def metrics() -> None:
    """Print the documentation page of all metrics."""
    click.echo(render_metrics_page(), nl=False)


def _live(place: Place) -> LiveConfig | None:
    """The settings of a running system; None if no system is running or named."""
    if place.state_path == default_state_path() and holder_of(place.state_path) is None:
        print_aside("no system runs here: these are the settings of daemons that would be started now")
        return None
    return read_live_config(place.api())


def _load_live(names: Sequence[str], live: LiveConfig) -> dict[str, Loaded[SettingsRecord] | None]:
    """The settings of running daemons. An invalid ConfigMap is reported and ignored, as in the daemons."""
    problems = [*live.problems, *live.ignored]
    loaded: dict[str, Loaded[SettingsRecord] | None] = {}
    for name in names:
        environment = dict(live.environments.get(name, {}))
        wrong: list[Problem] = []
        settings = _load(_BY_NAME[name], live.maps_of(name), flags={}, problems=wrong, environment=environment)
        if settings is None:
            settings = _load(_BY_NAME[name], (), flags={}, problems=[], environment=environment)
        problems += [problem for problem in wrong if problem not in problems]
        loaded[name] = settings
    for problem in in_reading_order(problems):
        print_aside(f"not in force: {problem}")
    return loaded


def _read(paths: Iterable[Path]) -> tuple[list[ConfigMap], list[Problem]]:
    config_maps: list[ConfigMap] = []
    problems: list[Problem] = []
    for path in paths:
        for file in sorted(path.glob("config-*.yaml")) if path.is_dir() else [path]:
            try:
                text = read_input_text(file)
            except OSError as error:
                what = f"not readable: {error.strerror}"
                problems.append(Problem(where=str(file), what=what, expected="a text file"))
                continue
            if not text.strip():
                problems.append(Problem(where=str(file), what="it is empty", expected="ConfigMaps or node groups"))
            read_maps, wrong = read_config_maps(text, str(file))
            config_maps += read_maps
            problems += wrong
    problems += unknown_config_maps(config_maps, DAEMONS)
    return config_maps, problems


def _flags(settings: Sequence[str], problems: list[Problem]) -> dict[str, dict[str, str]]:
    flags: dict[str, dict[str, str]] = {}
    for text in settings:
        name, _, value = text.partition("=")
        daemon, _, field = name.partition(".")
        if daemon in _BY_NAME and field and "=" in text:
            flags.setdefault(daemon, {})[field] = value
        else:
            expected = f"DAEMON.FIELD=VALUE with a daemon of {', '.join(sorted(_BY_NAME))}"
            problems.append(Problem(where="flag --set", what=f"{text!r} is not right", expected=expected))
    return flags


def _load(
    daemon: Daemon[SettingsRecord],
    config_maps: Sequence[ConfigMap],
    *,
    flags: dict[str, str],
    problems: list[Problem],
    environment: dict[str, str] | None = None,
) -> Loaded[SettingsRecord] | None:
    """The settings of a daemon; None if they are invalid. Problems are added to ``problems``.

    A problem that is already in the list is not added again: daemons may share a ConfigMap.
    """
    try:
        loaded = load(
            daemon,
            registry=DAEMONS,
            config_maps=config_maps,
            environment=dict(os.environ) if environment is None else environment,
            flags=flags,
        )
    except SettingsError as error:
        problems += [problem for problem in error.problems if problem not in problems]
        return None
    for ignored in loaded.ignored:
        print_aside(f"warning: {ignored}")
    return loaded


def _exit_with(problems: Sequence[Problem]) -> None:
    if problems:
        click.echo(str(SettingsError(in_reading_order(problems))), err=True)
        sys.exit(USAGE_EXIT)


def _rows(daemon: Daemon[SettingsRecord], loaded: Loaded[SettingsRecord]) -> Iterable[dict[str, Any]]:
    for field in daemon.fields():
        value: object = loaded.settings
        for part in field.path:
            value = getattr(value, part)
        origin = loaded.origins[field.name]
        yield {
            "daemon": daemon.name,
            "config_map": field.knob.config_map,
            "key": field.knob.key,
            "field": field.name,
            "value": value,
            "written": field.knob.unit.write(value),
            "layer": origin.layer,
            "origin": origin.where,
        }
