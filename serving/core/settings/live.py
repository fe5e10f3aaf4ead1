"""Live settings: a valid ConfigMap is applied while a daemon runs, an invalid one is rejected as a whole.

Input: ConfigMaps, one at a time, from a watch; output: settings, the changed fields, the fields that take effect after
a restart, and every problem of a rejected ConfigMap. Keys that no daemon reads have no effect and are reported; the
other keys apply, because one typing error must not freeze all settings. The last valid state of each ConfigMap stays
until the next valid one. Without one, a daemon uses the defaults and its environment: an ingress with the shipped
settings is better than none.

Environment and flags override ConfigMaps, as in ``load``. Two ConfigMaps that are valid only together are applied
together.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from serving.core.model.errors import Problem, SettingsError
from serving.core.settings.knob import ConfigMap, ConfigMapEntry, SettingsRecord, live_fields
from serving.core.settings.load import Daemon, known_entries, load, removed_keys, removed_variables, unknown_keys
from serving.core.settings.parse import EXAMPLE_KEY

R = TypeVar("R", bound=SettingsRecord)


class AppliedConfigMap(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of applying one ConfigMap, or several that were read together.

    ``changed`` are the fields with a new value. ``waiting`` are fields that change only when the daemon restarts.
    ``problems`` are the reasons of a rejection. ``unknown`` are keys that no daemon reads, including removed settings;
    they have no effect, and the other keys apply.
    """

    daemon: str
    config_map: str
    changed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Problem, ...] = ()


class LiveSettings(Generic[R]):
    """The live settings of one daemon. Raises ``SettingsError`` if the daemon's environment is invalid.

    ``ignored`` are environment variables of removed settings.
    """

    def __init__(
        self, daemon: Daemon[R], *, registry: Iterable[Daemon[SettingsRecord]], environment: Mapping[str, str]
    ) -> None:
        self._daemon = daemon
        self._registry = tuple(registry)
        self._environment = dict(environment)
        self._names = daemon.config_maps
        self._good: dict[str, ConfigMap] = {}
        self._refused: dict[str, ConfigMap] = {}
        self._is_running = False
        self.ignored = removed_variables(daemon, environment)
        self.settings: R = self._load(self._good)

    def begin(self) -> R:
        """Return the settings at the daemon's start; afterwards only live fields change."""
        self._is_running = True
        return self.settings

    def update(self, config_map: ConfigMap) -> AppliedConfigMap | None:
        """Store a ConfigMap and return the outcome; None if this daemon does not read the ConfigMap.

        A deleted ConfigMap is passed without entries.
        """
        name = config_map.name
        if name not in self._names:
            return None
        self._refused.pop(name, None)
        unknown = (*unknown_keys(config_map, self._registry), *removed_keys(config_map, self._registry))
        if unknown:
            config_map = msgspec.structs.replace(config_map, entries=known_entries(config_map, self._registry))
        applied = self._apply_or_reject(name, config_map)
        return msgspec.structs.replace(applied, unknown=unknown)

    def _apply_or_reject(self, name: str, config_map: ConfigMap) -> AppliedConfigMap:
        candidate = {**self._good, name: config_map}
        # A rejected ConfigMap may become valid with this one.
        try:
            loaded = self._load({**candidate, **self._refused})
        except SettingsError:
            try:
                loaded = self._load(candidate)
            except SettingsError as error:
                self._refused[name] = config_map
                return AppliedConfigMap(daemon=self._daemon.name, config_map=name, problems=tuple(error.problems))
            self._good = candidate
        else:
            self._good = {**candidate, **self._refused}
            self._refused.clear()
        return self._apply(name, loaded)

    def _apply(self, name: str, loaded: R) -> AppliedConfigMap:
        before, live = self.settings, live_fields(self._daemon.record)
        differing = [
            struct_field
            for struct_field in self._daemon.record.__struct_fields__
            if getattr(before, struct_field) != getattr(loaded, struct_field)
        ]
        changed = [name for name in differing if name in live or not self._is_running]
        self.settings = msgspec.structs.replace(before, **{name: getattr(loaded, name) for name in changed})
        return AppliedConfigMap(
            daemon=self._daemon.name,
            config_map=name,
            changed=tuple(changed),
            waiting=tuple(name for name in differing if name not in changed),
        )

    def _load(self, config_maps: Mapping[str, ConfigMap]) -> R:
        return load(
            self._daemon,
            registry=self._registry,
            config_maps=[config_maps[name] for name in sorted(config_maps)],
            environment=self._environment,
        ).settings


def config_map_of(name: str, data: Mapping[str, str]) -> ConfigMap:
    """Convert a ConfigMap of the API; its key ``_example`` is skipped."""
    where = f"ConfigMap {name}"
    entries = [ConfigMapEntry(key=key, text=str(text), where=where) for key, text in data.items() if key != EXAMPLE_KEY]
    return ConfigMap(name=name, where=where, entries=tuple(entries))
