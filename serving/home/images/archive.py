"""Reads an image from an OCI layout (folder or tar file) or a file of ``docker save``.

Input: a path; output: ``ArchivedImage`` with its config, its layers as files, and its names. All digests of an OCI
layout are verified. Of several platforms it selects that of this machine.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.home.boundedentry import BoundedEntry
from serving.net.aio.inputfile import open_input

_BYTES_MAX = 32 * 2**30
_MEMBERS_MAX = 100_000
_JSON_BYTES_MAX = 8 * 2**20
_PIECE_BYTES = 2**20
_NAME_KEYS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_EXPECTED = "an OCI image layout, or a file of `docker save` or `podman save`"
_Record = TypeVar("_Record")


class ImageRun(
    msgspec.Struct,
    frozen=True,
    rename={
        "env": "Env",
        "entrypoint": "Entrypoint",
        "command": "Cmd",
        "folder": "WorkingDir",
        "user": "User",
        "stop_signal": "StopSignal",
    },
):
    """The run settings in an image's config. Unset values are None or ""."""

    env: list[str] | None = None
    entrypoint: list[str] | None = None
    command: list[str] | None = None
    folder: str = ""
    user: str = ""
    stop_signal: str = ""


class _RootFilesystem(msgspec.Struct, frozen=True):
    diff_ids: list[str] = []


class ImageConfig(msgspec.Struct, frozen=True):
    """An image's config (OCI image specification, config.md)."""

    architecture: str = ""
    os: str = "linux"
    config: ImageRun = ImageRun()
    rootfs: _RootFilesystem = _RootFilesystem()


class ArchivedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image to be unpacked.

    ``id`` is the hex digest of its config, ``digest`` that of its manifest, "" if unknown.
    """

    id: str
    digest: str
    config: ImageConfig
    layers: tuple[Path, ...]
    names: tuple[str, ...]


class _Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    media_type: str = ""
    annotations: dict[str, str] = {}
    platform: dict[str, Any] = {}


class _Index(msgspec.Struct, frozen=True):
    manifests: list[_Descriptor]


class _ImageManifest(msgspec.Struct, frozen=True):
    config: _Descriptor
    layers: list[_Descriptor]


class _Saved(msgspec.Struct, frozen=True, rename={"config": "Config", "tags": "RepoTags", "layers": "Layers"}):
    config: str
    layers: list[str]
    tags: list[str] | None = None


@contextlib.contextmanager
def open_archive(path: Path, *, scratch: Path | None = None) -> Iterator[list[ArchivedImage]]:
    """Yield the images of an archive or layout, as a context. ``scratch`` is for unpacking a tar file.

    Raises:
        InvalidValue: when it is neither of them, is damaged, or has no image for this machine.
        OSError: when it cannot be read.
    """
    if path.is_dir():
        yield _images(path)
        return
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".archive-") as name:
        folder = Path(name)
        _extract(path, folder)
        yield _images(folder)


def _extract(path: Path, folder: Path) -> None:
    """Unpack the archive's files. A link is replaced by a copy of its target, as for a layer shared by two images.

    Links without a target in the archive are skipped.
    """
    links: list[tuple[str, str]] = []
    total = 0
    try:
        with open_input(path) as opened, tarfile.open(fileobj=opened, mode="r|*", tarinfo=BoundedEntry) as tar:
            for number, entry in enumerate(tar):
                total += entry.size
                if number > _MEMBERS_MAX or total > _BYTES_MAX:
                    raise InvalidValue(text=str(path), expected=f"at most {_BYTES_MAX} bytes in {_MEMBERS_MAX} files")
                if entry.issym():
                    links.append((entry.name, os.path.normpath(f"{entry.name}/../{entry.linkname}")))
                elif entry.islnk():
                    links.append((entry.name, entry.linkname))
                source = tar.extractfile(entry) if entry.isreg() else None
                if source is not None:
                    target = _inside(folder, entry.name)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as file:
                        shutil.copyfileobj(source, file, _PIECE_BYTES)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidValue(text=str(path), expected=_EXPECTED) from error
    for name, source_name in links:
        # A layer shared by two images. Links to anything else are skipped.
        with contextlib.suppress(OSError, InvalidValue):
            copy = _inside(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_inside(folder, source_name), copy)


def _images(folder: Path) -> list[ArchivedImage]:
    if (folder / "index.json").is_file():
        images = _from_layout(folder)
    elif (folder / "manifest.json").is_file():
        images = [_from_saved(folder, saved) for saved in _read(folder / "manifest.json", list[_Saved])]
    else:
        raise InvalidValue(text=str(folder), expected=_EXPECTED)
    if not images:
        machine = _MACHINES.get(platform.machine(), platform.machine())
        raise InvalidValue(text="no image", expected=f"an image for linux/{machine}")
    return images


def _from_layout(folder: Path) -> list[ArchivedImage]:
    images: list[ArchivedImage] = []
    for entry in _read(folder / "index.json", _Index).manifests:
        for descriptor in _of_this_machine(folder, entry):
            manifest = _read(_blob(folder, descriptor.digest), _ImageManifest)
            config = _read(_blob(folder, manifest.config.digest), ImageConfig)
            # A second tag of an image is a separate entry.
            names = [entry.annotations[key] for key in _NAME_KEYS if key in entry.annotations][:1]
            layers = tuple(_blob(folder, layer.digest) for layer in manifest.layers)
            images.append(
                ArchivedImage(
                    id=_hex(manifest.config.digest),
                    digest=entry.digest,
                    config=config,
                    layers=layers,
                    names=tuple(names),
                )
            )
    return images


def _of_this_machine(folder: Path, entry: _Descriptor) -> Sequence[_Descriptor]:
    """The image manifest that an entry of an index names, as a list of one descriptor.

    If the entry names a further index, this is the manifest for this machine's architecture. The list is empty if there
    is none.
    """
    if "index" not in entry.media_type and "manifest.list" not in entry.media_type:
        return [entry]
    machine = _MACHINES.get(platform.machine(), platform.machine())
    listed = _read(_blob(folder, entry.digest), _Index).manifests
    fitting = [
        descriptor
        for descriptor in listed
        if descriptor.platform.get("architecture", machine) == machine
        and descriptor.platform.get("os", "linux") == "linux"
    ]
    return fitting[:1]


def _from_saved(folder: Path, saved: _Saved) -> ArchivedImage:
    config_path = _inside(folder, saved.config)
    config = _read(config_path, ImageConfig)
    layers = tuple(_inside(folder, layer) for layer in saved.layers)
    for layer in layers:
        if not layer.is_file():
            raise InvalidValue(text=str(layer.relative_to(folder)), expected="a layer in the archive")
    return ArchivedImage(
        id=hashlib.sha256(config_path.read_bytes()).hexdigest(),
        digest="",
        config=config,
        layers=layers,
        names=tuple(saved.tags or ()),
    )


def _blob(folder: Path, digest: str) -> Path:
    """The path of the blob with a digest. Raises ``InvalidValue`` if it is missing or its content differs."""
    wanted = _hex(digest)
    path = folder / "blobs" / "sha256" / wanted
    if not path.is_file():
        raise InvalidValue(text=digest, expected="a blob in the archive")
    with path.open("rb") as file:
        digest_read = hashlib.file_digest(file, "sha256").hexdigest()
    if digest_read != wanted:
        raise InvalidValue(text=f"a blob with the digest sha256:{digest_read}", expected=digest)
    return path


def _hex(digest: str) -> str:
    kind, _, text = digest.partition(":")
    if kind != "sha256" or len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise InvalidValue(text=digest, expected="a digest such as sha256:0123...")
    return text


def _read(path: Path, record: type[_Record]) -> _Record:
    if path.stat().st_size > _JSON_BYTES_MAX:
        raise InvalidValue(text=path.name, expected=f"at most {_JSON_BYTES_MAX} bytes of JSON")
    try:
        return msgspec.json.decode(path.read_bytes(), type=record)
    except UNREADABLE as error:
        raise InvalidValue(text=f"{path.name}: {error}", expected=_EXPECTED) from error


def _inside(folder: Path, name: str) -> Path:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise InvalidValue(text=name, expected="a path within the archive")
    return folder.joinpath(*parts)
