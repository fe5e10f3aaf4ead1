"""Restores the creation times and generations of derived objects, which controllers recreate after a restart.

Their uid is derived from their owner's (``owners``). Their creation time and generation are written to a file next to
the journal, when a process stops and at a backup. So clients see the same objects after a reload, an upgrade, a
downgrade and a restore. If the file is lost, the objects get new times and generations.
"""

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from serving.core.model.errors import UNREADABLE
from serving.core.model.objects import Object
from serving.home.store.migrations import write_synced
from serving.home.store.writes import content_of

_log = logging.getLogger(__name__)


class _Former(msgspec.Struct, frozen=True, array_like=True):
    """The stored metadata of a derived object, which controllers recreate after a restart.

    ``created`` is its creation time, and ``digest`` that of its content. ``generation`` is None if the kind has none.
    """

    created: str
    generation: int | None
    digest: str


class FormerObjects:
    """The metadata of an earlier run's derived objects, which are not in the journal: controllers recreate them.

    It is read from a file next to the journal; without a journal it is empty.
    """

    def __init__(self, journal: Path | None) -> None:
        self._by_uid: dict[str, _Former] = {}
        if journal is None:
            return
        try:
            self._by_uid = msgspec.json.decode(metadata_path(journal).read_bytes(), type=dict[str, _Former])
        except FileNotFoundError:
            return
        except (OSError, *UNREADABLE) as error:
            _log.warning("derived.unreadable", extra={"error": str(error)})

    def resumed(self, new: Object) -> Object:
        """A new object with the creation time and generation of its former version, if any.

        If the content differs from the former version, the generation is incremented.
        """
        metadata = new["metadata"]
        former = self._by_uid.get(metadata["uid"])
        if former is None:
            return new
        resumed_metadata: Object = {**metadata, "creationTimestamp": former.created}
        if former.generation is not None and "generation" in metadata:
            resumed_metadata["generation"] = former.generation + (former.digest != _digest(new))
        return {**new, "metadata": resumed_metadata}


def write_note(journal: Path, derived: Iterable[Object]) -> None:
    """Save the metadata of derived objects for the next process. An error, such as a full disk, is only logged."""
    formers = {}
    for body in derived:
        metadata = body["metadata"]
        formers[metadata["uid"]] = _Former(metadata["creationTimestamp"], metadata.get("generation"), _digest(body))
    try:
        write_synced(metadata_path(journal), msgspec.json.encode(formers))
    except OSError as error:
        _log.warning("derived.not_noted", extra={"error": str(error)})


def metadata_path(journal: Path) -> Path:
    """The path of the file with the metadata of derived objects, next to a journal."""
    return journal.with_name(f"{journal.name}.derived")


def _digest(whole: Object) -> str:
    text = json.dumps(content_of(whole), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
