"""Warnings about the system's ConfigMaps at the time of their write: keys and values that the daemons will not accept.

Input: a stored ConfigMap; output: sentences for ``Warning`` headers. Other ConfigMaps, and those of other namespaces, get
none. The write itself always succeeds, as on a real server, where only Events report the problem later.
"""

from serving.cluster.identity import system_namespace
from serving.cluster.kinds import CONFIG_MAP, Kind
from serving.model.errors import SettingsError
from serving.model.objects import Object, name_of, namespace_of
from serving.settings.daemons import DAEMONS
from serving.settings.live import config_map_of
from serving.settings.load import load


def settings_warnings(kind: Kind, stored: Object) -> list[str]:
    """A sentence for each unknown key and each invalid value, without repetitions."""
    if kind != CONFIG_MAP or namespace_of(stored) != system_namespace():
        return []
    config_map = config_map_of(name_of(stored), stored.get("data") or {})
    found: list[str] = []
    for daemon in DAEMONS:
        try:
            load(daemon, registry=DAEMONS, config_maps=[config_map])
        except SettingsError as error:
            found += [str(problem) for problem in error.problems]
    return list(dict.fromkeys(found))
