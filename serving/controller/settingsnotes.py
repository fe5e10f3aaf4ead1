"""What is said of a ConfigMap, as Events of it: taken over, refused with all that is wrong, or waiting for a restart.

Input: what became of it for one daemon, and the ConfigMap; or what the cluster lacks for what it asks for. Output: notes.
Pure.
"""

from collections.abc import Iterator

from serving.controller.writes import Note
from serving.model.errors import ClusterError, NotFound
from serving.model.objects import Object
from serving.settings.live import Taken

__all__ = ["httproutes_missing", "httproutes_note", "settings_notes"]

_CONTROLLER_MAP = "config-controller"


def settings_notes(taken: Taken, config_map: Object) -> Iterator[Note]:
    """The Events of one ConfigMap, for one daemon."""
    # A list does not say what it is a list of.
    about = {**config_map, "apiVersion": "v1", "kind": "ConfigMap"}
    if taken.problems:
        said = "; ".join(str(one) for one in taken.problems)
        message = f"The {taken.daemon} keeps the settings that it has: {said}"
        yield Note(about=about, reason="SettingsRefused", message=message, warning=True)
    if taken.changed:
        message = f"The {taken.daemon} has taken over: {', '.join(taken.changed)}"
        yield Note(about=about, reason="SettingsChanged", message=message)
    if taken.waiting:
        message = f"The {taken.daemon} takes over when it is started again: {', '.join(taken.waiting)}"
        yield Note(about=about, reason="SettingsWaitForRestart", message=message, warning=True)


def httproutes_missing(gateway: str, error: ClusterError) -> str:
    """Why there can be no HTTPRoutes for a Gateway, where listing them ends in this error."""
    what = "does not know HTTPRoutes" if isinstance(error, NotFound) else "does not let us list HTTPRoutes"
    expected = "the definitions of the Gateway API, and the component gateway of config/"
    return f'Gateway "{gateway}" is set, and the server {what}; expected {expected}: {error}'


def httproutes_note(namespace: str, why: str) -> Note:
    """That a Gateway is set and the server has no HTTPRoutes, or not for us; ``namespace`` is the system's."""
    metadata = {"name": _CONTROLLER_MAP, "namespace": namespace}
    about: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    return Note(about=about, reason="GatewayApiMissing", message=why, warning=True)
