"""Pushes the images of a release folder to a registry, for clusters that reach no other: ``serving install --images``."""

import hashlib
import re
import subprocess
from pathlib import Path

from serving.core.model.errors import ServingError
from serving.tools.cli.client.output import Progress

_SUMS = "SHA256SUMS"
_ARCHIVE = re.compile(r"(serving|serving-queue-proxy|serving-placement)-(\d[0-9A-Za-z.+]*)\.oci\.tar")
_PIECE_BYTES = 2**20


def push_images(folder: Path, registry: str) -> dict[str, str]:
    """The images in the registry by their names. skopeo has the credentials and the authorities of registries.

    Raises:
        ServingError: for a folder that is no release or was changed, and with skopeo's words.
    """
    archives = {
        match[1]: (path, match[2])
        for path in sorted(folder.glob("*.oci.tar"))
        if (match := _ARCHIVE.fullmatch(path.name))
    }
    if not archives:
        raise ServingError(f"{folder} has no images; expected a folder of `make release`, with serving-VERSION.oci.tar")
    sums = _sums(folder / _SUMS)
    for path, _ in archives.values():
        if sums.get(path.name) != _digest_of(path):
            raise ServingError(f"{path.name} is not what {_SUMS} says; get the release again")
    images = {}
    with Progress("pushing images") as progress:
        for name, (path, version) in archives.items():
            images[name] = f"{registry.rstrip('/')}/{name}:{version.replace('+', '-')}"
            progress.update(f"pushing {images[name]}")
            command = ["skopeo", "copy", "--quiet", f"oci-archive:{path}", f"docker://{images[name]}"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - skopeo of the PATH
            except FileNotFoundError as error:
                raise ServingError("skopeo pushes images, and is not installed: apt-get install skopeo") from error
            if done.returncode:
                raise ServingError(f"{images[name]} was not pushed: {done.stderr.strip().splitlines()[-1]}")
    return images


def _sums(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ServingError(f"{path}: {error.strerror}; a release has it beside its images") from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
