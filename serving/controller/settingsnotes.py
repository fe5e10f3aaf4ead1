"""What is said of a ConfigMap, as Events of it: taken over, refused with all that is wrong, or waiting for a restart.

Input: what became of it for one daemon, and the ConfigMap; output: notes. Pure.
"""

from collections.abc import Iterator

from serving.controller.objects import Object
from serving.controller.writes import Note
from serving.settings.live import Taken

__all__ = ["settings_notes"]


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
