import io
import os
import tarfile
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.home.images.layers import LayerLimits, Unpacker
from tests.integration.image_stage import folder_of, tar_of

# VFS_CAP_REVISION_2 with cap_net_bind_service, permitted and effective.
BIND_SERVICE = "\x01\0\0\x02\0\x04" + "\0" * 14


def unpacked(root: Path, *layers: bytes, limits: LayerLimits | None = None) -> Unpacker:
    root.mkdir(exist_ok=True)
    unpacker = Unpacker(root, limits)
    for layer in layers:
        unpacker.unpack(io.BytesIO(layer))
    return unpacker


def link(path: str, target: str, *, hard: bool = False) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type, info.linkname = tarfile.LNKTYPE if hard else tarfile.SYMTYPE, target
    return info


def names_in(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_layer_files_folders_and_links_are_unpacked(tmp_path: Path) -> None:
    root = tmp_path / "root"
    unpacked(
        root, tar_of([folder_of("a", 0o751), ("a/f", b"text", 0o640), link("l", "a/f"), link("h", "a/f", hard=True)])
    )
    assert (root / "l").readlink() == Path("a/f")
    assert (root / "h").samefile(root / "a" / "f")
    assert ((root / "a" / "f").stat().st_mode & 0o777, (root / "a").stat().st_mode & 0o777) == (0o640, 0o751)


def test_later_layer_replaces_and_removes_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    first = tar_of([("f", b"1", 0o644), ("d/x", b"1", 0o644), ("d/y", b"1", 0o644), ("e/z", b"1", 0o644)])
    second = tar_of([("f", b"2", 0o644), ("d/.wh.x", b"", 0o644), (".wh.e", b"", 0o644)])
    unpacked(root, first, second)
    assert (root / "f").read_bytes() == b"2"
    assert names_in(root) == {"f", "d", "d/y"}


def test_opaque_folder_removes_files_of_lower_layers_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    second = tar_of([("d/new", b"", 0o644), ("d/.wh..wh..opq", b"", 0o644), ("d/later", b"", 0o644)])
    unpacked(root, tar_of([("d/old/deep", b"", 0o644)]), second)
    assert names_in(root) == {"d", "d/new", "d/later"}


def test_file_replaces_folder_and_folder_replaces_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    unpacked(
        root,
        tar_of([("a/x", b"", 0o644), ("b", b"", 0o644)]),
        tar_of([("a", b"", 0o644), folder_of("b"), ("b/y", b"", 0o644)]),
    )
    assert names_in(root) == {"a", "b", "b/y"}


def test_absolute_symlink_is_resolved_within_the_image(tmp_path: Path) -> None:
    root = tmp_path / "root"
    unpacked(root, tar_of([folder_of("usr/bin"), link("bin", "/usr/bin")]), tar_of([("bin/tool", b"", 0o755)]))
    assert (root / "usr" / "bin" / "tool").is_file()


@pytest.mark.parametrize("target", ["/etc", "../../outside", "/../../../outside", "../" * 20 + "outside"])
def test_symlink_out_of_the_image_is_not_followed(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").mkdir()
    root = tmp_path / "root"
    unpacked(root, tar_of([link("way", target), ("way/file", b"evil", 0o644)]))
    assert list((tmp_path / "outside").iterdir()) == []
    assert any(path.name == "file" and path.read_bytes() == b"evil" for path in root.rglob("file"))


@pytest.mark.parametrize("name", ["../file", "a/../../file", "/../file"])
def test_path_with_parent_folder_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValue, match=r"without '\.\.'"):
        unpacked(tmp_path / "root", tar_of([(name, b"", 0o644)]))
    assert not (tmp_path / "file").exists()


def test_hard_link_to_a_file_outside_is_rejected(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    secret.write_text("s")
    with pytest.raises(InvalidValue, match=r"a path without '\.\.'"):
        unpacked(root, tar_of([link("h", "../secret", hard=True)]))
    with pytest.raises(InvalidValue, match="a hard link to a file of the image"):
        unpacked(root, tar_of([link("d", str(tmp_path)), link("h", "d/secret", hard=True)]))
    assert secret.stat().st_nlink == 1
    assert names_in(root) == {"d"}


def test_whiteout_removes_a_symlink_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    root = tmp_path / "root"
    unpacked(root, tar_of([link("way", str(tmp_path / "outside"))]), tar_of([(".wh.way", b"", 0o644)]))
    assert names_in(root) == set()
    assert (tmp_path / "outside" / "kept").exists()


@pytest.mark.parametrize("name", [".wh.", ".wh...", ".wh.."])
def test_whiteout_without_entry_name_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValue, match="whiteout"):
        unpacked(tmp_path / "root", tar_of([(f"a/{name}", b"", 0o644)]))


def test_circular_symlinks_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="at most 40 links"):
        unpacked(tmp_path / "root", tar_of([link("a", "b"), link("b", "a"), ("a/file", b"", 0o644)]))


def test_device_nodes_are_skipped(tmp_path: Path) -> None:
    info = tarfile.TarInfo("dev/null")
    info.type = tarfile.CHRTYPE
    unpacker = unpacked(tmp_path / "root", tar_of([info, ("f", b"", 0o644)]))
    assert unpacker.left_out == ["dev/null"]
    assert "f" in names_in(tmp_path / "root")


def test_layer_bytes_and_entries_are_limited(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="at most 10 bytes"):
        unpacked(tmp_path / "a", tar_of([("f", b"x" * 11, 0o644)]), limits=LayerLimits(bytes_max=10))
    with pytest.raises(InvalidValue, match="in 2 entries"):
        unpacked(tmp_path / "b", tar_of([folder_of(str(n)) for n in range(3)]), limits=LayerLimits(entries_max=2))


@pytest.mark.parametrize("layer", [b"no tar", b"\x1f\x8b\x08garbage", tar_of([("f", b"x" * 2000, 0o644)])[:1000]])
def test_invalid_layer_is_rejected(tmp_path: Path, layer: bytes) -> None:
    with pytest.raises(InvalidValue, match="is not a layer"):
        unpacked(tmp_path / "root", layer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps owners")
def test_owners_and_setuid_bits_are_preserved(tmp_path: Path) -> None:
    info = tarfile.TarInfo("f")
    info.uid, info.gid, info.mode = 12, 34, 0o4755
    unpacked(tmp_path / "root", tar_of([info]))
    stats = (tmp_path / "root" / "f").stat()
    assert (stats.st_uid, stats.st_gid, stats.st_mode & 0o7777) == (12, 34, 0o4755)


def test_path_at_maximum_depth_is_unpacked(tmp_path: Path) -> None:
    unpacked(tmp_path / "root", tar_of([("/".join("abc"), b"", 0o644)]), limits=LayerLimits(depth_max=3))
    assert "a/b/c" in names_in(tmp_path / "root")


@pytest.mark.parametrize("kind", ["file", "folder", "parents", "link"])
def test_layer_above_maximum_depth_is_rejected(tmp_path: Path, kind: str) -> None:
    deep: dict[str, list[tarfile.TarInfo | tuple[str, bytes, int]]] = {
        "file": [("a/b/c/d", b"", 0o644)],
        "folder": [folder_of("a"), folder_of("a/b"), folder_of("a/b/c"), folder_of("a/b/c/d")],
        "parents": [("a/b/c/d/e/f", b"", 0o644)],
        "link": [folder_of("a/b"), link("way", "a/b"), ("way/c/d", b"", 0o644)],
    }
    with pytest.raises(InvalidValue, match=r"at most 3 levels of folders") as raised:
        unpacked(tmp_path / "root", tar_of(deep[kind]), limits=LayerLimits(depth_max=3))
    assert raised.value.text == "a/b/c/..., 4 levels deep"


def attributed(*, size: int = 1, **attributes: str) -> tarfile.TarInfo:
    """An entry with extended attributes; __ in a name stands for a dot."""
    info = tarfile.TarInfo("f")
    info.pax_headers = {f"SCHILY.xattr.{name.replace('__', '.')}": text * size for name, text in attributes.items()}
    return info


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sets file capabilities")
def test_user_xattrs_and_capabilities_are_preserved_but_not_overlays(tmp_path: Path) -> None:
    entry = attributed(
        security__capability=BIND_SERVICE,
        user__mime="text",
        user__overlay__redirect="/etc",
        trusted__overlay__redirect="/etc",
        trusted__mine="x",
        security__ima="x",
    )
    unpacked(tmp_path / "root", tar_of([entry]))
    listxattrs = set(os.listxattr(tmp_path / "root" / "f"))
    assert {name for name in listxattrs if name.partition(".")[0] in {"user", "trusted", "security"}} == {
        "security.capability",
        "user.mime",
    }
    assert os.getxattr(tmp_path / "root" / "f", "security.capability") == BIND_SERVICE.encode()


def test_oversized_xattr_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"user\.long of 65537 bytes"):
        unpacked(tmp_path / "root", tar_of([attributed(user__long="x", size=65537)]))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_oversized_tar_header_is_rejected_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("f")
    # The layer ends after this header, so reading further would report the end of the file.
    info.type, info.size = kind, 2**40
    with pytest.raises(InvalidValue, match="a header of 1099511627776 bytes"):
        unpacked(tmp_path / "root", info.tobuf(tarfile.GNU_FORMAT))
