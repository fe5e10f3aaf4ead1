"""The pauses before replacements of evicted pods: repeated evictions of a revision count as a crash loop.

A file keeps the pauses over restarts of this process and of the machine, because pods are not in the journal, and their
Deployments are created again with other uids.
"""

import logging
from pathlib import Path

import msgspec

from serving.core.model.errors import UNREADABLE
from serving.core.model.knative import REVISION_UID_LABEL
from serving.core.model.objects import Object, labels_of
from serving.home.kubelet.container import RestartPauses, RestartSettings
from serving.home.pods.diskbudget import owner_of
from serving.home.state import write_private

_log = logging.getLogger("kubelet")


class _Loss(msgspec.Struct, kw_only=True):
    """The evictions of one owner's pods: how many in a row, the time of the last, and when the next pod may start."""

    end_count: int
    last_s: float
    due_s: float


def lineage_of(pod: Object) -> str:
    """The identity that a pod has in common with its replacements: the uid of its revision, or else of its owner.

    It is the same after a restart.
    """
    return labels_of(pod).get(REVISION_UID_LABEL) or owner_of(pod)


class ReplacementPauses:
    """Computes how long the replacement of an evicted pod must wait, by owner. Times are monotonic, in seconds."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._owners: dict[str, _Loss] = {}

    def evicted(self, owner: str, *, began_s: float, at_s: float) -> None:
        """Count the eviction at ``at_s`` of a pod that began at ``began_s``.

        A pod that began before the owner's last eviction is not counted, because it belongs to the same failure.
        """
        loss = self._owners.pop(owner, _Loss(end_count=0, last_s=began_s, due_s=at_s))
        if began_s >= loss.last_s:
            pauses = RestartPauses(self._settings, loss.end_count)
            due_s = at_s + pauses.after(at_s - began_s)
            loss = _Loss(end_count=pauses.end_count, last_s=at_s, due_s=due_s)
        # Owners without evictions for a long time are dropped.
        quiet_s = self._settings.sound_s + self._settings.pause_max_s
        self._owners = {name: loss for name, loss in self._owners.items() if at_s - loss.last_s < quiet_s}
        self._owners[owner] = loss

    def due_s(self, owner: str) -> float:
        """The time from which a new pod of the owner may start; 0 without evictions."""
        return self._owners[owner].due_s if owner in self._owners else 0.0

    def written(self, *, ahead_s: float) -> bytes:
        """All pauses as JSON. ``ahead_s`` is added to all times, to convert them to the wall clock."""
        losses = {name: _shifted(loss, ahead_s) for name, loss in self._owners.items()}
        return msgspec.json.encode(losses)

    def read(self, text: bytes, *, ahead_s: float, now_s: float) -> None:
        """Add the pauses in the output of ``written``. ``ahead_s`` is subtracted from all times.

        A pause is shortened to the maximum of the settings, because the wall clock may have been set back. Raises an
        error of ``UNREADABLE`` for an invalid text.
        """
        losses = msgspec.json.decode(text, type=dict[str, _Loss])
        for name, written_loss in losses.items():
            loss = _shifted(written_loss, -ahead_s)
            loss.last_s = min(loss.last_s, now_s)
            loss.due_s = min(loss.due_s, now_s + self._settings.pause_max_s)
            self._owners[name] = loss


def _shifted(loss: _Loss, by_s: float) -> _Loss:
    return _Loss(end_count=loss.end_count, last_s=loss.last_s + by_s, due_s=loss.due_s + by_s)


def read_pauses(pauses: ReplacementPauses, path: Path, *, now_s: float, wall_s: float) -> None:
    """Read the pauses of an earlier process from a file. A missing or damaged file is ignored."""
    try:
        pauses.read(path.read_bytes(), ahead_s=wall_s - now_s, now_s=now_s)
    except FileNotFoundError:
        return
    except (OSError, *UNREADABLE) as error:
        _log.warning("evictions.not_read", extra={"path": str(path), "error": str(error)})


def write_pauses(pauses: ReplacementPauses, path: Path, *, now_s: float, wall_s: float) -> None:
    """Write the pauses into a file. On a full disk they stay in memory only."""
    try:
        write_private(path, pauses.written(ahead_s=wall_s - now_s))
    except OSError as error:
        _log.warning("evictions.not_written", extra={"path": str(path), "error": str(error)})
