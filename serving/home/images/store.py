"""Stores the images of this machine, each unpacked once, and builds images from folders.

An image is a folder named by its id (the digest of its config) with ``rootfs`` and ``image.json``. Its ``rootfs`` is
the lower layer of all its containers' roots. ``names.json`` maps names to images. The command line and the control
process write the store, each write under a lock.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from serving.core.model.errors import InvalidValue, ServingError
from serving.core.model.imagereference import ImageReference, parse_reference
from serving.home.images.archive import ArchivedImage, ImageConfig, open_archive
from serving.home.images.layers import LayerLimits, Unpacker
from serving.home.trees import discard_tree

_PRIVATE = 0o700
# Digits of an id that people type.
_ID_DIGITS_MIN = 6

_FILES = ("Containerfile", "Dockerfile")
_BUILDERS = ("buildah", "podman", "docker")
# Build packs, for folders without a Containerfile.
_PACKERS = ("railpack", "pack")
_ID_DIGITS = 12
_ERROR_LINES = 5
# Time for a builder to show that it works, in seconds.
_CHECK_MAX_S = 30.0


class ImageUnavailable(ServingError):
    """An image is not available. ``reason`` is the container's waiting reason in Kubernetes."""

    def __init__(self, image: str, why: str, *, reason: str = "ErrImagePull") -> None:
        self.reason = reason
        self.why = why
        super().__init__(f"image {image}: {why}")


class StoredImage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A runnable image. ``is_kept`` marks an image imported or pulled by a user, which is never removed."""

    id: str
    digest: str
    config: ImageConfig
    size_bytes: int
    created_s: float
    is_kept: bool = False


class _Names(msgspec.Struct, kw_only=True):
    names: dict[str, str] = {}


class ImageStore:
    """The image store in a folder. The first write creates the folder."""

    def __init__(self, folder: Path, *, limits: LayerLimits | None = None) -> None:
        self.folder = folder
        self._limits = limits

    def root_of(self, image: StoredImage) -> Path:
        """The folder with an image's files."""
        return self.folder / image.id / "rootfs"

    def find(self, text: str) -> StoredImage | None:
        """The image with this name, abbreviated id or digest; None if there is none. Raises ``InvalidValue``."""
        image_id = self._names().get(str(parse_reference(text)))
        if image_id is None and len(text) >= _ID_DIGITS_MIN and set(text) <= set("0123456789abcdef"):
            fitting = [image_id for image_id in self._ids() if image_id.startswith(text)]
            image_id = fitting[0] if len(fitting) == 1 else None
        if image_id is None:
            reference = parse_reference(text)
            # A digest names the same image, whatever tag it was pulled by.
            fitting = [image.id for image in self.images() if reference.digest and image.digest == reference.digest]
            image_id = fitting[0] if fitting else None
        return self.get(image_id) if image_id else None

    def images(self) -> list[StoredImage]:
        """All images, the newest first."""
        images = [image for image_id in self._ids() if (image := self.get(image_id)) is not None]
        return sorted(images, key=lambda image: -image.created_s)

    def names_of(self, image: StoredImage) -> list[ImageReference]:
        """The names of an image."""
        return [parse_reference(name) for name, image_id in sorted(self._names().items()) if image_id == image.id]

    def add(self, path: Path, *, names: Sequence[str] = (), digest: str = "", is_kept: bool) -> list[StoredImage]:
        """Unpack an archive or OCI layout. ``names`` replace the image's names.

        Raises:
            InvalidValue: when it is no archive, is damaged, is not safe, has several images to be named, or exceeds a limit.
            OSError: when it cannot be read or written.
        """
        self.folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        with open_archive(path, scratch=self.folder) as archived:
            if names and len({image.id for image in archived}) > 1:
                raise InvalidValue(text=str(path), expected=f"an archive of one image, to be named {names[0]}")
            return [
                self._add_one(image, names=names or image.names, digest=digest or image.digest, is_kept=is_kept)
                for image in archived
            ]

    def _add_one(self, archived: ArchivedImage, *, names: Sequence[str], digest: str, is_kept: bool) -> StoredImage:
        full_names = [str(parse_reference(name)) for name in names]
        with locked(self.folder):
            before = self.get(archived.id)
            if before is None:
                image = self._unpack(archived, digest=digest, is_kept=is_kept)
            else:
                image = msgspec.structs.replace(
                    before, is_kept=before.is_kept or is_kept, digest=digest or before.digest
                )
                self._write(self.folder / image.id, image)
            # An image without a name is found by its id.
            if full_names:
                self._rename({**self._names(), **dict.fromkeys(full_names, image.id)})
            return image

    def _unpack(self, archived: ArchivedImage, *, digest: str, is_kept: bool) -> StoredImage:
        wanted = archived.config.rootfs.diff_ids
        if len(wanted) != len(archived.layers):
            counts = f"{len(archived.layers)} layers for {len(wanted)} diff_ids"
            raise InvalidValue(text=counts, expected="an image whose config names its layers")
        unpacked = Path(tempfile.mkdtemp(dir=self.folder, prefix=".image-"))
        try:
            root = unpacked / "rootfs"
            root.mkdir()
            root.chmod(0o755)
            unpacker = Unpacker(root, self._limits)
            for layer, diff_id in zip(archived.layers, wanted, strict=True):
                with layer.open("rb") as file:
                    unpacker.unpack(file, diff_id=diff_id)
            image = StoredImage(
                id=archived.id,
                digest=digest,
                config=archived.config,
                size_bytes=unpacker.bytes_written,
                created_s=time.time(),
                is_kept=is_kept,
            )
            self._write(unpacked, image)
            unpacked.rename(self.folder / image.id)
        except BaseException:
            discard_tree(unpacked)
            raise
        return image

    def remove(self, image: StoredImage) -> None:
        """Remove an image and its names. Running containers keep their open files."""
        with locked(self.folder):
            self._rename({name: image_id for name, image_id in self._names().items() if image_id != image.id})
            gone = self.folder / f".gone-{image.id}"
            with contextlib.suppress(FileNotFoundError):
                (self.folder / image.id).rename(gone)
            discard_tree(gone)

    def name(self, text: str, image: StoredImage) -> None:
        """Give a name to an image. Another image loses this name. Raises ``InvalidValue``."""
        full = str(parse_reference(text))
        with locked(self.folder):
            self._rename({**self._names(), full: image.id})

    def untag(self, text: str) -> StoredImage | None:
        """Remove a name from its image; return the image if no other name remains. Raises ``InvalidValue``."""
        with locked(self.folder):
            names, name = self._names(), str(parse_reference(text))
            image_id = names.pop(name, None)
            self._rename(names)
            return self.get(image_id) if image_id and image_id not in names.values() else None

    def collect(self, used: Collection[str], *, now_s: float, unused_kept_s: float) -> list[str]:
        """Remove images that are not in ``used`` and older than ``unused_kept_s`` seconds; return their ids.

        Images imported or pulled by users are kept.
        """
        removed = []
        for image in self.images():
            if not image.is_kept and image.id not in used and now_s - image.created_s > unused_kept_s:
                self.remove(image)
                removed.append(image.id)
        return removed

    def _ids(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.folder) if not name.startswith(".") and "." not in name)  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            return []

    def get(self, image_id: str) -> StoredImage | None:
        """The image with an id; None if there is none."""
        try:
            return msgspec.json.decode((self.folder / image_id / "image.json").read_bytes(), type=StoredImage)
        except (OSError, msgspec.DecodeError):
            return None

    def _names(self) -> dict[str, str]:
        try:
            return msgspec.json.decode((self.folder / "names.json").read_bytes(), type=_Names).names
        except (OSError, msgspec.DecodeError):
            return {}

    def _rename(self, names: dict[str, str]) -> None:
        replace_file(self.folder / "names.json", msgspec.json.encode(_Names(names=names)))

    @staticmethod
    def _write(folder: Path, image: StoredImage) -> None:
        replace_file(folder / "image.json", msgspec.json.encode(image))


Puller = Callable[[ImageReference, ImageStore, bytes], StoredImage]
"""Adds an image to the store; blocks. Raises ``ImageUnavailable``."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the store's lock for a ``with`` block; creates the folder."""
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def containerfile_in(folder: Path) -> Path | None:
    """The Containerfile or Dockerfile of a folder; None if there is none."""
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


class ImageBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build of the image ``name`` from the source in ``folder``.

    ``file`` is the Containerfile; None means the one in ``folder``. ``target`` is the stage to build, "" for the last.
    If there is no Containerfile, the program ``packer`` builds the image.
    """

    name: str
    folder: Path
    file: Path | None = None
    arguments: dict[str, str] = {}
    target: str = ""
    packer: str = ""


def build_image(build: ImageBuild, store: ImageStore, *, is_kept: bool = False) -> str:
    """Build and unpack an image; returns its name, unique by content.

    Raises:
        ImageUnavailable: when no builder works, or it fails.
        InvalidValue: when there is no such folder or file, or the image cannot be unpacked.
        OSError: when the store cannot be written.
    """
    name, file = build.name, build.file or containerfile_in(build.folder)
    parse_reference(f"dev.local/{name}")
    if not build.folder.is_dir():
        raise InvalidValue(text=str(build.folder), expected="a folder to build an image from")
    is_packed = bool(file is None and build.packer)
    if not is_packed and (file is None or not file.is_file()):
        raise InvalidValue(text=str(file or build.folder), expected=" or ".join(_FILES) if file is None else "a file")
    builder = build.packer if is_packed else find_builder(name)
    local = f"localhost/serving-build/{name}:latest"
    store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store.folder, prefix=".build-") as scratch:
        path = str(Path(scratch) / "image.tar")
        if is_packed:
            named = (
                ["--name", local, str(build.folder)] if builder == "railpack" else [local, "--path", str(build.folder)]
            )
            _run(name, [builder, "build", *named])
            # Both leave their images in docker.
            builder = "docker"
        else:
            verb = "bud" if builder == "buildah" else "build"
            options = [f"--build-arg={key}={value}" for key, value in build.arguments.items()]
            options += [f"--target={build.target}"] if build.target else []
            _run(name, [builder, verb, "-q", "-t", local, "-f", str(file), *options, str(build.folder)])
        if builder == "buildah":
            _run(name, [builder, "push", "-q", local, f"oci-archive:{path}"])
        else:
            _run(name, [builder, "image", "save", "-o", path, local])
        image = store.add(Path(path), names=[local], is_kept=is_kept)[0]
        unique = f"dev.local/{name}:{image.id[:_ID_DIGITS]}"
        store.name(unique, image)
    return unique


def find_packer() -> str:
    """The installed program that builds images without a Containerfile, "railpack" or "pack"; "" if there is none."""
    return next(filter(shutil.which, _PACKERS), "")


def find_builder(name: str) -> str:
    """The first installed builder that works, for the image ``name``. Raises ``ImageUnavailable`` if there is none.

    Each builder is tried, because docker may be installed without its daemon.
    """
    failures = []
    for builder in filter(shutil.which, _BUILDERS):
        try:
            _run(name, [builder, "info"], within_s=_CHECK_MAX_S)
        except ImageUnavailable as error:
            failures.append(" ".join(error.why.split()))
        else:
            return builder
    why = "; ".join(["building it needs buildah, podman or docker: apt-get install buildah", *failures])
    raise ImageUnavailable(name, why)


def _run(name: str, command: list[str], *, within_s: float | None = None) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the builder that was found
            command,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired as error:
        raise ImageUnavailable(name, f"{command[0]} did not respond within {within_s:g} s") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()[-_ERROR_LINES:]
        raise ImageUnavailable(name, f"{command[0]} failed: " + "\n".join(lines or ["without output"]))
