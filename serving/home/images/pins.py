"""What a revision runs, though the name of its image may mean another image by now: image ids by key, on disk."""

from collections.abc import Collection
from pathlib import Path

import msgspec

from serving.home.images.store import StoredImage, locked, replace_file


class ImagePins:
    """The pins in a store's folder. A key is REVISION/CONTAINER, with the revision's uid."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / "pins.json"

    def __repr__(self) -> str:
        return f"ImagePins({self._path})"

    def get(self, key: str) -> str:
        """The id of the image that a key is pinned to; "" if there is none."""
        return self._read().get(key, "")

    def pin(self, key: str, image: StoredImage) -> None:
        """Have a key mean this image from now on."""
        with locked(self._folder):
            self._write({**self._read(), key: image.id})

    def unpin(self, kept: Collection[str]) -> frozenset[str]:
        """Drop the pins of all revisions but the ``kept``; the ids that are still pinned."""
        with locked(self._folder):
            pins = {key: one for key, one in self._read().items() if key.partition("/")[0] in kept}
            self._write(pins)
        return frozenset(pins.values())

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write(self, pins: dict[str, str]) -> None:
        replace_file(self._path, msgspec.json.encode(pins))
