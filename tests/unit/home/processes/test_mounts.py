"""Mounts seen by a process inside a mount namespace; skipped if the kernel allows no namespaces."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from serving.home.processes.mounts import MountPoint, opened

# Runs in a subprocess, because it changes the root.
_INSIDE = """
import json, msgspec, os, sys
from serving.home.processes.mounts import MountPoint, show_at_own_paths
arguments = json.loads(sys.argv[1])
mounts = msgspec.convert(arguments["mounts"], type=list[MountPoint])
try:
    placed = show_at_own_paths(mounts, new_root=arguments["root"], folder=arguments["folder"])
except OSError as error:
    print(error)
    sys.exit(77)
exec(sys.argv[2])
"""
_REFUSED = 77


def run_inside(tmp_path: Path, mounts: Sequence[MountPoint], code: str, *, folder: str = "/") -> str:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    dumps = json.dumps({"mounts": msgspec.to_builtins(mounts), "root": str(root), "folder": folder})
    done = subprocess.run(
        [sys.executable, "-c", _INSIDE, dumps, code], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode == _REFUSED:
        pytest.skip(f"no mount namespace here: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def a_volume(tmp_path: Path, name: str = "volume") -> str:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "key").write_text(f"of {name}")
    return str(folder)


def test_volume_is_mounted_only_inside_the_namespace(tmp_path: Path) -> None:
    mounts = [MountPoint(source=a_volume(tmp_path), target="/hello-mounts")]
    code = "print(open('/hello-mounts/key').read(), os.path.exists('/etc/passwd'), os.getcwd())"
    assert run_inside(tmp_path, mounts, code, folder="/hello-mounts") == "of volume True /hello-mounts"
    assert not Path("/hello-mounts").exists()


def test_mount_below_a_host_folder_retains_its_entries(tmp_path: Path) -> None:
    mounts = [MountPoint(source=a_volume(tmp_path), target="/etc/serving-test/config")]
    beside = sorted(entry.name for entry in Path("/etc").iterdir())
    seen = run_inside(tmp_path, mounts, "print(json.dumps(sorted(os.listdir('/etc'))))")
    assert json.loads(seen) == sorted([*beside, "serving-test"])
    assert run_inside(tmp_path, mounts, "print(open('/etc/serving-test/config/key').read())") == "of volume"


def test_mount_hides_existing_folder(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "old").write_text("x")
    mounts = [MountPoint(source=a_volume(tmp_path), target=str(hidden))]
    assert run_inside(tmp_path, mounts, f"print(os.listdir({str(hidden)!r}))") == "['key']"
    assert [path.name for path in hidden.iterdir()] == ["old"]


def test_single_file_is_mounted_and_nested_mount_is_skipped(tmp_path: Path) -> None:
    source = a_volume(tmp_path)
    mounts = [
        MountPoint(source=f"{source}/key", target="/single"),
        MountPoint(source=source, target="/outer-mount"),
        MountPoint(source=source, target="/outer-mount/inner"),
    ]
    code = "print(open('/single').read(), os.listdir('/outer-mount'), sorted(placed))"
    assert run_inside(tmp_path, mounts, code) == "of volume ['key'] ['/outer-mount', '/single']"


def test_read_only_mount_rejects_writes(tmp_path: Path) -> None:
    source = a_volume(tmp_path)
    mounts = [
        MountPoint(source=source, target="/fixed-mount", read_only=True),
        MountPoint(source=source, target="/open-mount"),
    ]
    code = (
        "open('/open-mount/new', 'w').write('x')\n"
        "try: open('/fixed-mount/more', 'w')\n"
        "except OSError as error: print(error.strerror)"
    )
    assert run_inside(tmp_path, mounts, code) == "Read-only file system"
    assert (Path(source) / "new").read_text() == "x"


def test_sub_path_is_created_and_symlinks_in_it_are_rejected(tmp_path: Path) -> None:
    source = a_volume(tmp_path)
    (Path(source) / "out").symlink_to("/etc")
    mount_points = [MountPoint(source=source, target="/part-mount", below="a/b")]
    assert run_inside(tmp_path, mount_points, "open('/part-mount/new', 'w').close()") == ""
    assert (Path(source) / "a" / "b" / "new").exists()
    assert (Path(source) / "a" / "b").stat().st_mode & 0o777 == 0o777
    for below in ("out", "out/ssl"):
        with (
            pytest.raises(OSError, match=f"subPath {below}: out is a link"),
            opened(MountPoint(source=source, target="/part-mount", below=below)),
        ):
            pass


def test_volume_folder_replaced_by_symlink_is_rejected(tmp_path: Path) -> None:
    volume = tmp_path / ".volumes" / "v"
    volume.mkdir(parents=True)
    mount = MountPoint(source=str(volume), home=str(tmp_path), target="/part-mount")
    with opened(mount) as source:
        assert Path(source).samefile(volume)
    (tmp_path / ".volumes").rename(tmp_path / "before")
    (tmp_path / ".volumes").symlink_to("/etc")
    with pytest.raises(OSError, match=r"volume: \.volumes is a link"), opened(mount):
        pass


def test_file_mount_over_hosts_is_local_to_the_process(tmp_path: Path) -> None:
    mine = tmp_path / "hosts"
    mine.write_text("127.0.0.1 shown-over\n")
    code = (
        "import sys; from serving.home.processes.mounts import MountPoint, can_mount, show_over, HOSTS_PATH\n"
        "if not can_mount(): sys.exit(77)\n"
        "show_over([MountPoint(source=sys.argv[1], target=HOSTS_PATH)])\n"
        "import socket; print(socket.gethostbyname('shown-over'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(mine)], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode == _REFUSED:
        pytest.skip("no mount namespace here")
    assert done.stdout.strip() == "127.0.0.1", done.stderr
    assert "shown-over" not in Path("/etc/hosts").read_text()
