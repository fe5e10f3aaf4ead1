"""The controller's settings as ConfigMaps say them, and the Events that tell what becomes of each ConfigMap.

The controller checks the ConfigMaps of all daemons and writes Events for all of them, so that nobody else needs the right;
what a daemon's own environment says to it is not known here. It reads the autoscaler's settings too, because a revision
starts with the scale that it asks for.
"""

from collections.abc import Mapping
from typing import Any

from serving.cluster.configmaps import ConfigMapWatch
from serving.cluster.port import Object
from serving.controller.io.controller import Controller
from serving.controller.settingsnotes import settings_notes
from serving.settings.daemons import AUTOSCALER, CONTROLLER, DAEMONS, ELECTION, QUEUEPROXY
from serving.settings.live import LiveSettings, Taken

__all__ = ["ControllerConfig"]


class ControllerConfig:
    """Its own settings, the autoscaler's and those of all queue-proxies, as they are now. Raises ``SettingsError`` for a wrong environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.own = LiveSettings(CONTROLLER, registry=DAEMONS, environment=environment)
        self.scaling = LiveSettings(AUTOSCALER, registry=DAEMONS, environment=environment)
        self.proxy = LiveSettings(QUEUEPROXY, registry=DAEMONS, environment=environment)
        self.election = LiveSettings(ELECTION, registry=DAEMONS, environment=environment)
        others = [one for one in DAEMONS if one not in (CONTROLLER, AUTOSCALER, QUEUEPROXY, ELECTION)]
        self.all: list[LiveSettings[Any]] = [
            self.own,
            self.scaling,
            self.proxy,
            self.election,
            *(LiveSettings(one, registry=DAEMONS, environment={}) for one in others),
        ]

    def attach(self, controller: Controller, watch: ConfigMapWatch) -> None:
        """From now on this controller takes over what changes, and tells of it; first of what is refused already."""

        def heard(taken: Taken, config_map: Object) -> None:
            if taken.changed and taken.daemon in (CONTROLLER.name, AUTOSCALER.name):
                controller.reconfigure(self.own.settings, self.scaling.settings)
            for note in settings_notes(taken, config_map):
                controller.report(note)

        controller.reconfigure(self.own.settings, self.scaling.settings)
        watch.listeners[:] = [heard]
        for taken, config_map in watch.refused.values():
            for note in settings_notes(taken, config_map):
                controller.report(note)
