"""A mount namespace, seen from a process inside; skipped where the kernel allows none."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from serving.home.processes.mounts import MountPoint, opened

# In a process of its own: this one keeps its root.
_INSIDE = """
import json, msgspec, os, sys
from serving.home.processes.mounts import MountPoint, show_at_own_paths
asked = json.loads(sys.argv[1])
mounts = msgspec.convert(asked["mounts"], type=list[MountPoint])
try:
    placed = show_at_own_paths(mounts, new_root=asked["root"], folder=asked["folder"])
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


def test_a_volume_is_at_its_own_path_and_nowhere_else(tmp_path: Path) -> None:
    mounts = [MountPoint(source=a_volume(tmp_path), target="/hello-mounts")]
    code = "print(open('/hello-mounts/key').read(), os.path.exists('/etc/passwd'), os.getcwd())"
    assert run_inside(tmp_path, mounts, code, folder="/hello-mounts") == "of volume True /hello-mounts"
    assert not Path("/hello-mounts").exists()


def test_a_volume_below_a_folder_of_the_machine_leaves_what_is_beside_it(tmp_path: Path) -> None:
    mounts = [MountPoint(source=a_volume(tmp_path), target="/etc/serving-test/config")]
    beside = sorted(entry.name for entry in Path("/etc").iterdir())
    seen = run_inside(tmp_path, mounts, "print(json.dumps(sorted(os.listdir('/etc'))))")
    assert json.loads(seen) == sorted([*beside, "serving-test"])
    assert run_inside(tmp_path, mounts, "print(open('/etc/serving-test/config/key').read())") == "of volume"


def test_a_volume_hides_what_has_its_path(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "old").write_text("x")
    mounts = [MountPoint(source=a_volume(tmp_path), target=str(hidden))]
    assert run_inside(tmp_path, mounts, f"print(os.listdir({str(hidden)!r}))") == "['key']"
    assert [path.name for path in hidden.iterdir()] == ["old"]


def test_a_file_can_be_mounted_and_what_is_below_a_mount_is_left_out(tmp_path: Path) -> None:
    source = a_volume(tmp_path)
    mounts = [
        MountPoint(source=f"{source}/key", target="/single"),
        MountPoint(source=source, target="/outer-mount"),
        MountPoint(source=source, target="/outer-mount/inner"),
    ]
    code = "print(open('/single').read(), os.listdir('/outer-mount'), sorted(placed))"
    assert run_inside(tmp_path, mounts, code) == "of volume ['key'] ['/outer-mount', '/single']"


def test_a_read_only_mount_takes_no_write_and_another_does(tmp_path: Path) -> None:
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


def test_a_part_of_a_volume_is_made_and_a_link_on_the_way_is_refused(tmp_path: Path) -> None:
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


def test_a_volume_that_a_pod_has_exchanged_for_a_link_is_refused(tmp_path: Path) -> None:
    volume = tmp_path / ".volumes" / "v"
    volume.mkdir(parents=True)
    mount = MountPoint(source=str(volume), home=str(tmp_path), target="/part-mount")
    with opened(mount) as source:
        assert Path(source).samefile(volume)
    (tmp_path / ".volumes").rename(tmp_path / "before")
    (tmp_path / ".volumes").symlink_to("/etc")
    with pytest.raises(OSError, match=r"volume: \.volumes is a link"), opened(mount):
        pass


def test_a_file_is_shown_over_one_that_exists_and_to_this_process_only(tmp_path: Path) -> None:
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
