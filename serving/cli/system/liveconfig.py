"""The settings that running daemons use: ConfigMaps of the store, and the environment of each daemon's process.

On one machine the environment is read from /proc. On a cluster only the ConfigMaps can be read; environments belong to
Deployments there. Daemons that do not follow ConfigMaps are listed here, so that none is shown for them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from serving.cli.client.api import ApiClient
from serving.cli.client.checks import holder_of
from serving.cli.client.objects import items_of
from serving.cluster.identity import system_namespace
from serving.cluster.kinds import CONFIG_MAP
from serving.home.processes.process_lifetime import children_of, environment_of
from serving.model.errors import Problem
from serving.model.objects import name_of
from serving.settings.configmap import ConfigMap
from serving.settings.parse import read_config_maps

NOT_LIVE = frozenset({"dashboard", "placement", "queueproxy"})
"""Daemons that read their environment alone."""
# Which process of `serving up` has the settings of a daemon.
_MODULES = {
    "activator": "serving.activator.main",
    "autoscaler": "serving.autoscaler.main",
    "controller": "serving.home.main",
    "dashboard": "serving.dashboard.main",
    "election": "serving.home.main",
}


class LiveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """ConfigMaps with the problems in them, and environments by daemon; of a daemon that is not there none."""

    config_maps: Sequence[ConfigMap]
    problems: Sequence[Problem]
    environments: Mapping[str, Mapping[str, str]]

    def maps_of(self, daemon: str) -> Sequence[ConfigMap]:
        """The ConfigMaps that a daemon follows."""
        return () if daemon in NOT_LIVE else self.config_maps


def read_live_config(api: ApiClient) -> LiveConfig:
    """Ask the store, and the processes of this machine."""
    namespace = system_namespace(os.environ)
    config_maps: list[ConfigMap] = []
    problems: list[Problem] = []
    for one in items_of(api.within(namespace), CONFIG_MAP):
        if name_of(one).startswith("config-"):
            found, wrong = read_config_maps(json.dumps(one), f"ConfigMap {namespace}/{name_of(one)}")
            config_maps += found
            problems += wrong
    environments = {} if api.state_path is None else _environments(api.state_path)
    return LiveConfig(config_maps=config_maps, problems=problems, environments=environments)


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
