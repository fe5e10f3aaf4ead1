"""Settings in the environment of ``serving up``, checked before anything starts: each daemon would end with the same error."""

import re
from collections.abc import Mapping

from serving.model.errors import SettingsError

# What only `serving up` reads.
_OWN = frozenset({"SERVING_ACTIVATOR_COUNT"})
_DAEMONS = ("ACTIVATOR", "AUTOSCALER", "CONTROLLER", "DASHBOARD", "NODEGROUP", "PLACEMENT")
_SETTING = re.compile(rf"SERVING_({'|'.join(_DAEMONS)})_\w+")


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises ``SettingsError`` with every variable that no daemon could use, and what would be right."""
    given = {name: text for name, text in environment.items() if _SETTING.fullmatch(name) and name not in _OWN}
    if not given:
        # The records of all daemons take a while to import.
        return
    from serving.settings.daemons import DAEMONS  # noqa: PLC0415 - as above
    from serving.settings.load import wrong_variables  # noqa: PLC0415 - as above

    problems = {
        one.where: one
        for daemon in DAEMONS
        if daemon.name.upper() in _DAEMONS
        for one in wrong_variables(daemon, registry=DAEMONS, environment=given)
    }
    if problems:
        raise SettingsError(list(problems.values()))
