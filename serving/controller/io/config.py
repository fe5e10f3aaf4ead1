"""The controller's live settings, and the Events about each ConfigMap.

The controller checks the ConfigMaps of all daemons and writes their Events, so that no other daemon needs the permission; the
environment of other daemons is not known here. It also reads the autoscaler's settings, because they determine the
scale that a revision starts with.
"""

from collections.abc import Mapping
from typing import Any

from serving.cluster.configmaps import ConfigMapWatch
from serving.controller.io.controller import Controller
from serving.controller.io.sources import settings_notes
from serving.model.objects import Object
from serving.settings.daemons import AUTOSCALER, CONTROLLER, DAEMONS, ELECTION, QUEUEPROXY
from serving.settings.live import LiveSettings, Taken


class ControllerConfig:
    """The current settings of the controller, the autoscaler and the queue-proxies. Raises ``SettingsError`` for a wrong environment."""

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
        """Apply changes to this controller from now on, and report them; refusals so far are reported first."""

        def heard(taken: Taken, config_map: Object) -> None:
            if taken.changed and taken.daemon in (CONTROLLER.name, AUTOSCALER.name, QUEUEPROXY.name):
                controller.reconfigure(self.own.settings, self.scaling.settings, self.proxy.settings)
            for note in settings_notes(taken, config_map):
                controller.report(note)

        controller.reconfigure(self.own.settings, self.scaling.settings, self.proxy.settings)
        watch.listeners[:] = [heard]
        for taken, config_map in watch.refused.values():
            for note in settings_notes(taken, config_map):
                controller.report(note)
