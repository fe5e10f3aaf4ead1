"""Builds an image from a folder with a Containerfile or Dockerfile, by the builder that is installed, into the store."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from serving.home.images.store import ImageStore, ImageUnavailable

_FILES = ("Containerfile", "Dockerfile")
_BUILDERS = ("buildah", "podman", "docker")
_ID_DIGITS = 12
_ERROR_LINES = 5


def containerfile_in(folder: Path) -> Path | None:
    """The file that says how to build an image of a folder; None if there is none."""
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def build_image(folder: Path, name: str, store: ImageStore) -> str:
    """Build, unpack, and return the image's name, which is another for each content. The builder's output goes to ours.

    Raises:
        ImageUnavailable: when no builder is installed, or it fails.
        InvalidValue: when the image cannot be unpacked.
        OSError: when the store cannot be written.
    """
    file = containerfile_in(folder)
    assert file is not None, "the caller has looked"
    builder = next((one for one in _BUILDERS if shutil.which(one)), None)
    if builder is None:
        raise ImageUnavailable(name, f"{file.name} needs a builder: apt-get install buildah")
    local = f"localhost/serving-build/{name}:latest"
    store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store.folder, prefix=".build-") as scratch:
        path = str(Path(scratch) / "image.tar")
        verb = "bud" if builder == "buildah" else "build"
        _run(name, [builder, verb, "-q", "-t", local, "-f", str(file), str(folder)])
        if builder == "buildah":
            _run(name, [builder, "push", "-q", local, f"oci-archive:{path}"])
        else:
            _run(name, [builder, "image", "save", "-o", path, local])
        image = store.add(Path(path), names=[local], is_kept=False)[0]
        named = f"dev.local/{name}:{image.id[:_ID_DIGITS]}"
        store.name(named, image)
    return named


def _run(name: str, command: list[str]) -> None:
    done = subprocess.run(  # noqa: S603 - the builder that was found
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()[-_ERROR_LINES:]
        raise ImageUnavailable(name, f"{command[0]} failed: " + "\n".join(lines or ["without a word"]))
