"""Images for tests: OCI layouts and files of ``docker save``, built from folders, and one with busybox."""

import functools
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from serving.home.containers.engine import find_engine

BUSYBOX = shutil.which("busybox")
# Serves /tmp, with a page that says what the container is.
_SERVER = """#!/bin/sh
echo "TARGET=$TARGET PORT=$PORT user=$(id -u):$(id -g) host=$(hostname) pid=$$ home=$HOME" > /tmp/me
echo started
exec httpd -f -p "${PORT:-8080}" -h /tmp
"""


@functools.cache
def needs_containers(runtime: str = "") -> pytest.MarkDecorator:
    """Skip a test with the reason where no container can run, by ``runtime`` if it is named; else as root."""
    engine = find_engine(runtime)
    reason = engine.reason if BUSYBOX else "busybox is not installed (apt-get install busybox-static)"
    if not reason and engine.is_rootless and not runtime:
        reason = "cgroups and networks of pods need root"
    return pytest.mark.skipif(bool(reason), reason=reason)


def tar_of(entries: Sequence[tarfile.TarInfo | tuple[str, bytes, int]]) -> bytes:
    """A layer: (path, content, mode) or whole entries."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
                continue
            path, content, mode = entry
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def folder_of(path: str, mode: int = 0o755) -> tarfile.TarInfo:
    """An entry for a folder."""
    info = tarfile.TarInfo(path)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info


def web_layer() -> bytes:
    """A layer with busybox and a web server that reports its surroundings."""
    assert BUSYBOX is not None
    links = []
    for name in (
        "sh",
        "httpd",
        "id",
        "cat",
        "echo",
        "sleep",
        "hostname",
        "env",
        "wget",
        "nslookup",
        "ls",
        "touch",
        "dd",
        "kill",
        "stat",
    ):
        link = tarfile.TarInfo(f"bin/{name}")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        links.append(link)
    return tar_of(
        [
            folder_of("bin"),
            ("bin/busybox", Path(BUSYBOX).read_bytes(), 0o755),
            *links,
            folder_of("tmp", 0o1777),
            folder_of("etc"),
            ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1001:web:/srv/web:/bin/sh\n", 0o644),
            ("etc/group", b"root:x:0:\nweb:x:1001:\nmore:x:1002:web\n", 0o644),
            ("server", _SERVER.encode(), 0o755),
        ]
    )


def oci_archive(
    path: Path, layers: Sequence[bytes], *, name: str = "", config: Mapping[str, object] | None = None
) -> str:
    """Write a tar file of an OCI layout; the image's id."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    kind = "application/vnd.oci.image"
    described = [{"mediaType": f"{kind}.layer.v1.tar", **blob(layer)} for layer in layers]
    result = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
    }
    whole = {"mediaType": f"{kind}.config.v1+json", **blob(json.dumps(result).encode())}
    manifest = {"schemaVersion": 2, "config": whole, "layers": described}
    entry = {"mediaType": f"{kind}.manifest.v1+json", **blob(json.dumps(manifest).encode())}
    if name:
        entry["annotations"] = {"org.opencontainers.image.ref.name": name}
    files = [("oci-layout", b'{"imageLayoutVersion": "1.0.0"}', 0o644)]
    files.append(("index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(), 0o644))
    files += [(f"blobs/sha256/{digest}", content, 0o644) for digest, content in blobs.items()]
    path.write_bytes(tar_of(files))
    return str(whole["digest"]).removeprefix("sha256:")


def app_image(path: Path, *, name: str = "test.local/web:1", **config: object) -> str:
    """Write the archive of an image that serves; its id."""
    return oci_archive(
        path, [web_layer()], name=name, config={"Entrypoint": ["/server"], "Env": ["TARGET=image"], **config}
    )
