# What is replaced, and not used.
# ruff: noqa: S108

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.core.model.errors import SettingsError
from serving.home.processes import confine
from serving.home.processes import isolation as module
from serving.home.processes.isolation import (
    Confinement,
    Isolation,
    closed_above,
    files_of,
    is_open,
    isolation_gap,
    isolation_of,
    missing_layers,
    plan_of,
)

STATE = "/var/state"
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
OWN_USER = 0x70000000 + (3 << 8) + 7


def isolation(mode: str = "default", *, is_root: bool = True) -> Isolation:
    return Isolation(mode=mode, state=STATE, is_root=is_root)


def test_mode_none_has_no_isolation(tmp_path: Path) -> None:
    assert isolation_of("none", tmp_path) is None


@pytest.mark.parametrize(
    ("mode", "is_root", "user"),
    [("default", False, 0), ("strict", False, 0), ("default", True, OWN_USER), ("strict", True, OWN_USER)],
)
def test_root_assigns_each_pod_address_a_user(mode: str, is_root: bool, user: int) -> None:
    assert isolation(mode, is_root=is_root).user_of("127.64.3.7") == user


def test_confinement_shows_pod_folders_below_hidden_state() -> None:
    confinement = isolation().confinement(
        address="127.64.0.1", shown=(f"{STATE}/pods/a", "/app", f"{STATE}/pods/a"), ports=()
    )
    assert (confinement.hidden, confinement.shown) == ((STATE,), (f"{STATE}/pods/a",))


def test_closed_folder_in_open_state_folder_is_hidden_with_it() -> None:
    # Folders of pytest are closed.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        pods = Path(folder) / "pods"
        pods.mkdir(mode=0o700)
        confinement = Isolation(mode="default", state=folder, is_root=True).confinement(
            address="127.64.0.1", shown=(), owned=(f"{pods}/p",), ports=()
        )
    assert (confinement.hidden, confinement.shown) == ((folder,), (f"{pods}/p",))


def test_temporary_folders_are_private_unless_the_pod_shows_them() -> None:
    def private(*shown: str, state: str = STATE, temporary: str = "/t") -> tuple[Sequence[str], Sequence[str]]:
        confinement = Isolation(mode="default", state=state, is_root=False).confinement(
            address="127.64.0.1", shown=shown, ports=(), temporary=temporary
        )
        return confinement.private, confinement.shown

    every = tuple(text for text in TEMPORARY if Path(text).is_dir())
    assert private() == (every, ())
    assert private(temporary="") == ((), ())
    assert private("/tmp/app", "/opt") == (every, ("/tmp/app",))
    # A volume of the pod, or the folder that the app runs in.
    assert private("/tmp") == (every[1:], ())
    # A temporary folder that is the hidden state folder needs no private copy.
    assert private(state="/tmp") == (every[1:], ())
    assert private(state="/tmp/state") == (every, ())


def test_temporary_folders_in_a_command_are_not_shown() -> None:
    assert files_of(("/bin/sh", "-c", "ls /tmp /var/tmp > /dev/shm"), {"PATH": ""}) == []


@pytest.mark.parametrize("mode", ["default", "strict"])
def test_confinement_allows_listed_ports_and_any_free_port(mode: str) -> None:
    assert isolation(mode).confinement(address="127.64.0.1", shown=(), ports=(8080, 8080)).ports == (0, 8080)
    assert isolation(mode).confinement(address="127.64.0.1", shown=(), ports=None).ports is None


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A home folder closed to other users. If a folder above it is closed too, the outermost one counts."""
    tmp_path.chmod(0o755)
    home = tmp_path / "home"
    (home / "app" / "bin").mkdir(parents=True)
    home.chmod(0o700)
    return home


def test_root_hides_closed_folders_except_pod_folders(closed: Path) -> None:
    app, around = str(closed / "app"), closed_above(str(closed / "app"))
    assert str(closed).startswith(around)
    confinement = isolation().confinement(address="127.64.0.1", shown=("/opt/app", app), ports=())
    assert (confinement.hidden, confinement.shown) == ((around, STATE), (app,))
    assert isolation(is_root=False).confinement(address="127.64.0.1", shown=(app,), ports=()).hidden == (STATE,)


def test_closed_folder_owned_by_the_pod_is_not_hidden(closed: Path) -> None:
    around = closed_above(str(closed / "app"))
    confinement = isolation().confinement(address="127.64.0.1", shown=(), owned=(around,), ports=())
    assert (confinement.hidden, confinement.owned) == ((STATE,), (around,))


def test_files_of_finds_installations_behind_links_and_in_shell_commands(closed: Path) -> None:
    program, script = closed / "app" / "bin" / "python", closed / "main.py"
    (closed / "real" / "bin").mkdir(parents=True)
    (closed / "real" / "bin" / "python3").write_text("")
    program.symlink_to(closed / "real" / "bin" / "python3")
    script.write_text("")
    files = files_of(
        ("/bin/sh", "-c", f"exec '{program}' {script} --at=/none $PORT"), {"PYTHONPATH": str(closed / "real")}
    )
    assert set(files) == {str(closed / "app"), str(closed / "real"), str(script)}


def test_files_of_includes_folders_of_linked_programs(closed: Path) -> None:
    folder, modules = closed / "run", closed / "app" / "node_modules"
    for path in (modules / "x" / "cli.js", closed / "tool" / "main.py", closed / "venv" / "bin" / "serve"):
        path.parent.mkdir(parents=True)
        path.write_text("")
    (modules / ".bin").mkdir()
    (modules / ".bin" / "x").symlink_to("../x/cli.js")
    (closed / "tool.sh").symlink_to("tool/main.py")
    folder.mkdir()
    (folder / ".venv").symlink_to(closed / "venv")
    assert files_of((str(modules / ".bin" / "x"),), {"PATH": ""}) == [str(modules)]
    assert files_of((str(closed / "tool.sh"),), {"PATH": ""}) == [str(closed / "tool.sh"), str(closed / "tool")]
    assert files_of((".venv/bin/serve", "a/b"), {"PATH": ""}, str(folder)) == [str(closed / "venv")]
    assert files_of(("sh", "-c", "exec .venv/bin/serve"), {"PATH": ""}, str(folder)) == [str(closed / "venv")]
    (folder / "serve").symlink_to(closed / "tool" / "main.py")
    for command in (("./serve",), ("python3", "serve")):
        assert str(closed / "tool") in files_of(command, {"PATH": ""}, str(folder))


def test_files_of_includes_editable_projects_of_a_virtualenv(closed: Path) -> None:
    venv, project = closed / "app", closed / "project"
    notes = venv / "lib" / "python3.11" / "site-packages"
    project.mkdir()
    for name, note in {
        "mine": {"url": project.as_uri(), "dir_info": {"editable": True}},
        "gone": {"url": "file:///absent", "dir_info": {"editable": True}},
        "copied": {"url": closed.as_uri(), "dir_info": {}},
        "wheel": {"url": "https://example.org/wheel", "archive_info": {}},
    }.items():
        (notes / f"{name}-1.dist-info").mkdir(parents=True)
        (notes / f"{name}-1.dist-info" / "direct_url.json").write_text(json.dumps(note))
    (notes / "bad-1.dist-info").mkdir()
    (notes / "bad-1.dist-info" / "direct_url.json").write_text("[")
    (venv / "bin" / "python").write_text("")
    assert str(project) not in files_of((str(venv / "bin" / "python"),), {})
    (venv / "pyvenv.cfg").write_text("")
    assert set(files_of((str(venv / "bin" / "python"),), {})) == {str(venv), str(project)}


def test_files_of_includes_base_python_of_a_virtualenv(closed: Path) -> None:
    venv, base = closed / "app", closed / "base"
    (base / "bin").mkdir(parents=True)
    (base / "bin" / "python3").write_text("")
    (venv / "bin" / "serve").write_text(f"#!{venv}/bin/python\n")
    (venv / "bin" / "python").write_text("")
    (venv / "pyvenv.cfg").write_text(f"version = 3\nhome = {base}/bin\n")
    assert set(files_of((str(venv / "bin" / "serve"),), {})) == {str(venv), str(base)}
    (venv / "pyvenv.cfg").write_bytes(b"home = \xff\n")
    assert files_of((str(venv / "bin" / "serve"),), {}) == [str(venv)]


def test_files_of_reads_interpreters_of_named_scripts(closed: Path) -> None:
    interpreter = closed / "app" / "bin" / "python"
    interpreter.write_text("")
    (closed / "run.sh").write_text(f"#!{interpreter}\n")
    (closed / "data").write_bytes(f"\0{interpreter}".encode())
    assert str(closed / "app") in files_of(("./run.sh",), {}, str(closed))
    assert str(closed / "app") in files_of(("sh", "-c", "exec $HOME/run.sh"), {"HOME": str(closed)})
    assert str(closed / "app") not in files_of(("cat", "data", "missing"), {}, str(closed))


def test_files_of_does_not_open_pipes(closed: Path) -> None:
    pipe, program = closed / "pipe", closed / "app" / "bin" / "serve"
    program.write_text("")
    os.mkfifo(pipe)
    os.mkfifo(closed / "app" / "pyvenv.cfg")
    # An open pipe would block forever.
    assert files_of(("cat", str(pipe), str(program)), {"PATH": ""}) == [str(pipe), str(closed / "app")]


def test_files_of_ignores_text_too_long_for_a_path(closed: Path) -> None:
    program = closed / "app" / "bin" / "serve"
    program.write_text("")
    assert files_of((str(program), f"--text=/{'x' * 300}"), {"PATH": ""}) == [str(closed / "app")]


def test_files_of_finds_programs_in_path(closed: Path) -> None:
    program = closed / "app" / "bin" / "serve"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert files_of(("serve",), {"PATH": str(program.parent)}) == [str(closed / "app")]
    assert files_of(("sh", "-c", "exec serve --port 1"), {"PATH": f"{program.parent}:/usr/bin:/bin"}) == [
        str(closed / "app")
    ]
    assert files_of((), {}) == []


def test_files_of_includes_interpreter_of_program_in_shell_command(closed: Path) -> None:
    interpreter, folder = closed / "app" / "bin" / "python", closed / "other" / "bin"
    interpreter.write_text("")
    folder.mkdir(parents=True)
    (folder / "serve").write_text(f"#!{interpreter}\n")
    (folder / "serve").chmod(0o755)
    files = files_of(("sh", "-c", "exec serve"), {"PATH": f"{folder}:/usr/bin:/bin"})
    assert files == [str(closed / "other"), str(closed / "app")]


def test_closed_home_with_bin_folder_is_not_an_installation() -> None:
    # Not tmp_path: a folder above it is closed too.
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        program = Path(home) / "bin" / "serve"
        program.parent.mkdir()
        program.write_text("")
        assert closed_above(str(program)) == home
        assert files_of((str(program),), {}) == [str(program)]
        Path(home).chmod(0o755)
        assert files_of((str(program),), {}) == [home]


def test_folder_is_open_if_others_may_read_and_enter_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert is_open(str(tmp_path))
    tmp_path.chmod(0o750)
    assert not is_open(str(tmp_path))
    assert not is_open(str(tmp_path / "none"))


def test_preloaded_revisions_have_distinct_users() -> None:
    users = {isolation().user_of_revision(name) for name in ("a/b", "a/c")}
    assert len(users) == 2
    assert min(users) >= 0x70010000
    assert isolation(is_root=False).user_of_revision("a/b") == 0


def test_missing_layers_are_probed_with_a_lenient_plan() -> None:
    plans: list[dict[str, Any]] = []

    def tried(plan: dict[str, Any]) -> list[str]:
        plans.append(plan)
        return ["landlock: no such call"]

    assert missing_layers(isolation("strict"), tried=tried) == ["landlock: no such call"]
    assert plans[0]["is_strict"] is False


def test_plan_has_every_confinement_field_as_json() -> None:
    plan = plan_of(isolation("strict").confinement(address="127.64.0.1", shown=(), ports=(1,)))
    assert plan.keys() == {"filter", *Confinement.__struct_fields__}
    assert plan["ports"] == [0, 1]


@pytest.mark.parametrize(
    ("mode", "user", "missing", "gap"),
    [
        ("default", 0, (), ""),
        ("default", 0, ("seccomp: no list", "user: no"), "not isolated by seccomp: no list; user: no"),
        ("default", 1000, (), f"not isolated by {module.SAME_USER}"),
        ("default", 1000, ("seccomp: no list",), f"not isolated by seccomp: no list; {module.SAME_USER}"),
        ("strict", 0, (), ""),
        ("none", 0, (), "--isolation none: the pod has the rights of the user who runs serving"),
    ],
)
def test_isolation_gap_names_missing_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, user: int, missing: Sequence[str], gap: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(module, "missing_layers", lambda _: list(missing))
    assert isolation_gap(mode, tmp_path) == gap


def test_strict_mode_rejects_missing_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "missing_layers", lambda _: ["user: no"])
    with pytest.raises(SettingsError, match="not possible here: user: no"):
        isolation_gap("strict", tmp_path)


def test_kernel_without_landlock_4_lacks_the_ports_layer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if confine.landlock_abi() < 4:
        pytest.skip("this kernel lacks it, whatever the test says")
    monkeypatch.setattr(confine, "landlock_abi", lambda: 3)
    wanted = isolation_of("default", tmp_path)
    assert wanted is not None
    assert "ports: the kernel has no Landlock of version 4 or later" in missing_layers(wanted)
    assert "ports: the kernel" in isolation_gap("default", tmp_path)
    with pytest.raises(SettingsError, match="--isolation strict: not possible here: ports"):
        isolation_gap("strict", tmp_path)
