"""All daemons with their settings records; loading, shipped ConfigMaps and docs use this list."""

from serving.core.settings import removed
from serving.core.settings.activator import ActivatorSettings
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.dashboard import DashboardSettings
from serving.core.settings.election import ElectionSettings
from serving.core.settings.knativekeys import WITHOUT_EFFECT
from serving.core.settings.knob import SettingsRecord
from serving.core.settings.load import Daemon
from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.core.settings.placement import PlacementSettings
from serving.core.settings.queueproxy import QUEUEPROXY

ACTIVATOR = Daemon(name="activator", record=ActivatorSettings, config_map="config-activator", removed=removed.ACTIVATOR)
AUTOSCALER = Daemon(
    name="autoscaler", record=AutoscalerSettings, config_map="config-autoscaler", removed=removed.AUTOSCALER
)
CONTROLLER = Daemon(
    name="controller",
    record=ControllerSettings,
    config_map="config-controller",
    removed=removed.CONTROLLER,
    reports=frozenset(WITHOUT_EFFECT),
)
DASHBOARD = Daemon(name="dashboard", record=DashboardSettings, config_map="config-dashboard", removed=removed.DASHBOARD)
ELECTION = Daemon(name="election", record=ElectionSettings, config_map="config-leader-election")
NODEGROUP = Daemon(
    name="nodegroup", record=NodeGroupDaemonSettings, config_map="config-nodegroup", removed=removed.NODEGROUP
)
PLACEMENT = Daemon(name="placement", record=PlacementSettings, config_map="config-placement", removed=removed.PLACEMENT)

DAEMONS: tuple[Daemon[SettingsRecord], ...] = (
    ACTIVATOR,
    AUTOSCALER,
    CONTROLLER,
    DASHBOARD,
    ELECTION,
    NODEGROUP,
    PLACEMENT,
    QUEUEPROXY,
)
