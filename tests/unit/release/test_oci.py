import json
import os
import tarfile
from pathlib import Path
from typing import Any

from release import oci

AT_S = 1_700_000_000


def tree(root: Path, *, backwards: bool = False) -> Path:
    files = {"opt/app/main.py": "run()", "opt/app/lib/one.py": "1", "etc/passwd": "root", "usr/bin/tool": "elf"}
    for name in sorted(files, reverse=backwards):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[name])
    (root / "usr/bin/tool").chmod(0o700)
    (root / "tmp").mkdir(mode=0o700)
    (root / "tmp").chmod(0o1777)
    (root / "usr/bin/link").symlink_to("tool")
    return root


def packed(root: Path, archive: Path) -> bytes:
    image = oci.Image(
        name="app:1",
        layers=("opt", "opt/app/lib"),
        config={"User": "65532:65532"},
        labels={"org.opencontainers.image.version": "1"},
        epoch_s=AT_S,
    )
    oci.pack(root, archive, image)
    return archive.read_bytes()


def blobs(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as new_archive:
        return {member.name: file.read() for member in new_archive if (file := new_archive.extractfile(member))}


def manifest(archive: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    entry = blobs(archive)
    (described,) = json.loads(entry["index.json"])["manifests"]
    return json.loads(entry[blob(described)]), entry


def blob(described: dict[str, Any]) -> str:
    return "blobs/sha256/" + str(described["digest"]).removeprefix("sha256:")


def test_archive_bytes_are_independent_of_mtime_umask_and_order(tmp_path: Path) -> None:
    data = packed(tree(tmp_path / "one"), tmp_path / "one.tar")
    mask = os.umask(0o077)
    try:
        other = tree(tmp_path / "elsewhere" / "other", backwards=True)
    finally:
        os.umask(mask)
    for path in other.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert packed(other, tmp_path / "other.tar") == data


def test_changed_content_changes_archive(tmp_path: Path) -> None:
    data = packed(tree(tmp_path / "one"), tmp_path / "one.tar")
    other = tree(tmp_path / "other")
    (other / "etc/passwd").write_text("nobody")
    assert packed(other, tmp_path / "other.tar") != data


def test_file_is_in_layer_of_its_deepest_folder(tmp_path: Path) -> None:
    packed(tree(tmp_path / "root"), tmp_path / "image.tar")
    entry, content = manifest(tmp_path / "image.tar")
    names = []
    for layer in entry["layers"]:
        (tmp_path / "layer").write_bytes(content[blob(layer)])
        with tarfile.open(tmp_path / "layer") as archive:
            names.append([member.name for member in archive if member.isfile()])
    assert names == [["etc/passwd", "usr/bin/tool"], ["opt/app/main.py"], ["opt/app/lib/one.py"]]


def test_entries_belong_to_root_and_are_readable_by_all(tmp_path: Path) -> None:
    names = list(oci.paths_of(tree(tmp_path / "root")))
    (tmp_path / "layer").write_bytes(oci.tar_of(tmp_path / "root", names, epoch_s=AT_S))
    with tarfile.open(tmp_path / "layer") as archive:
        entries = {member.name: member for member in archive}
    assert {(member.uid, member.gid, member.uname, member.mtime) for member in entries.values()} == {(0, 0, "", AT_S)}
    modes = {name: entries[name].mode for name in ("etc/passwd", "usr/bin/tool", "tmp", "usr")}
    assert modes == {"etc/passwd": 0o644, "usr/bin/tool": 0o755, "tmp": 0o1777, "usr": 0o755}
    assert entries["usr/bin/link"].linkname == "tool"


def test_every_blob_has_digest_of_its_name(tmp_path: Path) -> None:
    from release.verify import _image_problems  # noqa: PLC0415 - the verifier is the second reader

    packed(tree(tmp_path / "root"), tmp_path / "image.tar")
    assert list(_image_problems(tmp_path / "image.tar")) == []
    entry, content = manifest(tmp_path / "image.tar")
    assert json.loads(content[blob(entry["config"])])["config"]["User"] == "65532:65532"
    assert entry["annotations"] == {"org.opencontainers.image.version": "1"}


def test_index_has_image_names_of_containerd_and_kubelet(tmp_path: Path) -> None:
    packed(tree(tmp_path / "one"), tmp_path / "one.tar")
    (described,) = json.loads(blobs(tmp_path / "one.tar")["index.json"])["manifests"]
    assert described["annotations"] == {
        "io.containerd.image.name": "docker.io/library/app:1",
        "org.opencontainers.image.ref.name": "app:1",
    }
    assert oci.names_of("registry.example/app:1")["io.containerd.image.name"] == "registry.example/app:1"
