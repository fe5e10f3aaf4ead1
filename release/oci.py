"""Pack a root file system as an OCI image archive, the same bytes for the same content.

Layers have sorted names, owner 0, normalised modes and one time. The archive is what ``skopeo copy oci-archive:FILE``,
``podman load`` and ``serving image import`` read. Source: OCI image format 1.1.
"""

import gzip
import hashlib
import io
import json
import platform
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_INDEX = "application/vnd.oci.image.index.v1+json"
# A level of its own, so that a new default of Python changes no digest.
_COMPRESSION = 6
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def paths_of(root: Path) -> Iterator[str]:
    """Every path below a root, parents first, sorted."""
    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts):
        yield str(path.relative_to(root))


def tar_of(root: Path, names: Sequence[str], *, epoch_s: int) -> bytes:
    """A tar of some paths below a root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            entry = archive.gettarinfo(str(root / name), arcname=name)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = epoch_s
            entry.mode = _mode(entry)
            # Two names of one file are two files here: what is linked depends on the machine.
            if entry.islnk():
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", (root / name).stat().st_size
            content = (root / name).read_bytes() if entry.isreg() else b""
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _mode(entry: tarfile.TarInfo) -> int:
    """Readable by all, writable by root: whatever the umask of the build is.

    Temporary folders keep their sticky bit.
    """
    if entry.isdir():
        return 0o1777 if entry.mode & stat.S_ISVTX else 0o755
    return 0o755 if entry.mode & stat.S_IXUSR or entry.issym() else 0o644


class Image(NamedTuple):
    """What an image is beside its files."""

    name: str
    """The reference that the archive carries, such as ``serving:0.2.0``."""
    layers: Sequence[str]
    """Folders, one layer each; the deepest decides. The first layer has what lies in none."""
    config: Mapping[str, Any]
    """The image's own ``config``: user, environment, command."""
    labels: Mapping[str, str]
    """Labels of the image and annotations of its manifest."""
    epoch_s: int
    """The time of each file and of the image, seconds since 1970."""


def pack(root: Path, archive: Path, image: Image) -> str:
    """Write the files below ``root`` as an image archive, and return the digest of its manifest."""
    name, layers, config, labels, epoch_s = image
    groups: dict[str, list[str]] = {"": [], **{prefix: [] for prefix in layers}}
    for path in paths_of(root):
        matching = [prefix for prefix in layers if f"{path}/".startswith(f"{prefix}/")]
        groups[max(matching, key=len, default="")].append(path)
    blobs: dict[str, bytes] = {}
    created = datetime.fromtimestamp(epoch_s, UTC).isoformat().replace("+00:00", "Z")
    tars = [tar_of(root, names, epoch_s=epoch_s) for names in groups.values()]
    packed = [gzip.compress(tar, _COMPRESSION, mtime=0) for tar in tars]
    described_image = {
        "created": created,
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {**config, "Labels": dict(labels)},
        "rootfs": {"type": "layers", "diff_ids": [_digest(tar) for tar in tars]},
        "history": [{"created": created, "created_by": f"release/image.py {prefix or 'runtime'}"} for prefix in groups],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _put(blobs, _CONFIG, _json(described_image)),
        "layers": [_put(blobs, _LAYER, layer) for layer in packed],
        "annotations": dict(labels),
    }
    described = _put(blobs, _MANIFEST, _json(manifest)) | {"annotations": names_of(name)}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [described]}),
        **{f"blobs/sha256/{digest.removeprefix('sha256:')}": content for digest, content in sorted(blobs.items())},
    }
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as out:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(content), epoch_s, 0o644
            out.addfile(entry, io.BytesIO(content))
    return str(described["digest"])


def names_of(name: str) -> dict[str, str]:
    """The annotations that name an image, of its entry in the index.

    containerd stores an image under its own annotation, unchanged, and the kubelet asks for the name in full. podman
    and skopeo read the other one. Source: containerd 2.3, core/images/annotations.go.
    """
    full = name if "/" in name else f"docker.io/library/{name}"
    return {"io.containerd.image.name": full, "org.opencontainers.image.ref.name": name}


def _put(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, Any]:
    """Add a blob and return its descriptor."""
    digest = _digest(content)
    blobs[digest] = content
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
