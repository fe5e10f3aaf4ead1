"""Events of a ConfigMap: applied, refused with every problem, or waiting for a restart.

Input: the result of a ConfigMap for one daemon, or what the cluster lacks for a setting. Output: notes.
"""

from collections.abc import Iterator

from serving.controller.values.writes import Note
from serving.model.errors import ClusterError, NotFound
from serving.model.objects import Object
from serving.settings.live import Taken

_CONTROLLER_MAP = "config-controller"


def settings_notes(taken: Taken, config_map: Object) -> Iterator[Note]:
    """The Events of one ConfigMap, for one daemon."""
    # Items of a list have no kind.
    about = {**config_map, "apiVersion": "v1", "kind": "ConfigMap"}
    if taken.problems:
        said = "; ".join(str(one) for one in taken.problems)
        message = f"The {taken.daemon} keeps the settings that it has: {said}"
        yield Note(about=about, reason="SettingsRefused", message=message, warning=True)
    if taken.unknown:
        said = "; ".join(str(one) for one in taken.unknown)
        message = f"Keys without effect, the others apply: {said}"
        yield Note(about=about, reason="SettingsUnknown", message=message, warning=True)
    if taken.changed:
        message = f"The {taken.daemon} has taken over: {', '.join(taken.changed)}"
        yield Note(about=about, reason="SettingsChanged", message=message)
    if taken.waiting:
        message = f"The {taken.daemon} takes over when it is started again: {', '.join(taken.waiting)}"
        yield Note(about=about, reason="SettingsWaitForRestart", message=message, warning=True)


def httproutes_missing(gateway: str, error: ClusterError) -> str:
    """Why there are no HTTPRoutes for a Gateway, from the error of listing them."""
    what = "does not know HTTPRoutes" if isinstance(error, NotFound) else "does not let us list HTTPRoutes"
    expected = "the definitions of the Gateway API, and the component gateway of config/"
    return f'Gateway "{gateway}" is set, and the server {what}; expected {expected}: {error}'


def httproutes_note(namespace: str, why: str) -> Note:
    """The note that a Gateway is set but HTTPRoutes cannot be listed; ``namespace`` is the system's."""
    metadata = {"name": _CONTROLLER_MAP, "namespace": namespace}
    about: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    return Note(about=about, reason="GatewayApiMissing", message=why, warning=True)
