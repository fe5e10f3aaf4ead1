"""Finds the images of containers: pins them to revisions, and pulls missing ones.

A revision pulls when it is created, or when a pod of it moves here: its first pod has the image before any request
waits.
"""

import asyncio
import contextlib
from collections.abc import Collection
from pathlib import Path

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.imagereference import ImageReference, parse_reference
from serving.core.model.objects import Object, nested, uid_of
from serving.home.images.store import ImageStore, ImageUnavailable, Puller, StoredImage, locked, replace_file
from serving.home.pods.podplan import all_containers, container_name_of
from serving.net.aio.supervise import TaskOwner

ID_SCHEME = "sha256:"
"""Prefix of the id of an image without a digest, in a pod's status."""
_NEVER = "Never"


class ImagePins:
    """Stores the image of each container of a revision, in a store's folder. A key is REVISION_UID/CONTAINER."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "pins.json"

    def get(self, key: str) -> str:
        """The image id that a key is pinned to; "" if none."""
        return self._read().get(key, "")

    def pin(self, key: str, image: StoredImage) -> None:
        """Pin a key to an image."""
        with locked(self._folder):
            self._write({**self._read(), key: image.id})

    def unpin(self, revision_uids: Collection[str]) -> frozenset[str]:
        """Remove the pins of all other revisions; return the ids that remain pinned."""
        with locked(self._folder):
            pins = {key: image_id for key, image_id in self._read().items() if key.partition("/")[0] in revision_uids}
            self._write(pins)
        return frozenset(pins.values())

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write(self, pins: dict[str, str]) -> None:
        replace_file(self._path, msgspec.json.encode(pins))


def images_used(pod: Object, store: ImageStore) -> frozenset[str]:
    """The ids of the stored images that a pod or revision uses, by its status, its pins, or else its image names."""
    ids = {
        status.get("name", ""): status.get("imageID", "").removeprefix(ID_SCHEME)
        for field in ("containerStatuses", "initContainerStatuses")
        for status in nested(pod, "status", field) or ()
    }
    pins, used = ImagePins(store.folder), set()
    for container in all_containers(pod) if nested(pod, "spec", "containers") else ():
        name = container_name_of(container)
        # Text that is not an image name is not run.
        with contextlib.suppress(InvalidValue):
            image = store.find(ids.get(name) or pins.get(f"{uid_of(pod)}/{name}") or container.get("image", ""))
            used |= {image.id} if image else set()
    return frozenset(used)


class ImageSource:
    """Returns images from the store, and pulls missing ones by each puller until one succeeds."""

    def __init__(self, store: ImageStore, pullers: tuple[Puller, ...] = ()) -> None:
        self.store = store
        self._pins = ImagePins(store.folder)
        self._pullers = pullers
        self._tasks = TaskOwner()
        self._pulling: dict[tuple[str, bytes], asyncio.Task[StoredImage]] = {}

    async def ensure(self, image: str, *, policy: str = "", key: str = "", credentials: bytes = b"") -> StoredImage:
        """Return the image, pulled if it is missing. ``policy`` is a container's ``imagePullPolicy``.

        ``credentials`` are those of the pod, as returned by ``credentials_of``. The first call with a ``key``, such as
        a revision's container, pins the key to its image, which all later calls return.

        Raises:
            ImageUnavailable: when it cannot be obtained.
        """
        try:
            reference = parse_reference(image)
        except InvalidValue as error:
            raise ImageUnavailable(image, str(error), reason="InvalidImageName") from error
        stored, is_pinned = await asyncio.to_thread(self._find, image, key)
        if stored is not None:
            return stored if is_pinned else await self._pinned(key, stored)
        if policy == _NEVER:
            raise ImageUnavailable(image, "is not on this machine (imagePullPolicy: Never)", reason="ErrImageNeverPull")
        # A pull with other credentials may have another result.
        pull = (str(reference), credentials)
        task = self._pulling.get(pull)
        if task is None:
            task = self._pulling[pull] = self._tasks.start(
                self._pull(reference, credentials), name=f"pull {image}", is_awaited=True
            )
            task.add_done_callback(lambda _: self._pulling.pop(pull, None))
        return await self._pinned(key, await asyncio.shield(task))

    def _find(self, image: str, key: str) -> tuple[StoredImage | None, bool]:
        """The stored image, if any, and whether the key is pinned to it."""
        pinned = self._pins.get(key) if key else ""
        stored = self.store.get(pinned) if pinned else None
        return (stored, True) if stored is not None else (self.store.find(image), False)

    async def _pinned(self, key: str, image: StoredImage) -> StoredImage:
        if key:
            await asyncio.to_thread(self._pins.pin, key, image)
        return image

    async def _pull(self, reference: ImageReference, credentials: bytes) -> StoredImage:
        failures: list[str] = []
        for puller in self._pullers:
            try:
                return await asyncio.to_thread(puller, reference, self.store, credentials)
            except ImageUnavailable as error:
                failures.append(error.why)
        why = "; ".join(failures) or "is not on this machine; `serving image import FILE` adds it"
        raise ImageUnavailable(reference.short, why)
