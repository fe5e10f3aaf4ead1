"""The unit that `serving install-service` writes."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from serving.tools.cli.main import main
from serving.tools.cli.system import service
from serving.tools.cli.system.service import unit_text, verify
from tests.tidy.sources import ROOT

STATE = Path("/var/lib/serving state/100%")
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@pytest.mark.parametrize("is_root", [True, False])
@needs_systemd
def test_systemd_accepts_the_generated_unit(is_root: bool) -> None:
    text = unit_text(["/bin/true"], STATE, ["--public-port=80", "--domain=a$b"], is_root=is_root)
    assert verify(text) == []
    assert f"WantedBy={'multi-user' if is_root else 'default'}.target" in text


@needs_systemd
def test_systemd_accepts_the_documented_backup_units(tmp_path: Path) -> None:
    block = re.search(r"```ini\n(.*?)```", (ROOT / "docs" / "backup.md").read_text(), re.DOTALL)
    assert block is not None
    # systemd checks that the program exists; the documented one is in a missing home folder.
    text = block[1].replace("%h/.local/bin/serving", "/bin/true")
    _, *units = re.split(r"^# \S*/(?=serving-backup\.)", text, flags=re.MULTILINE)
    paths = []
    for unit in units:
        name, _, content = unit.partition("\n")
        paths.append(tmp_path / name)
        paths[-1].write_text(content)
    assert [path.suffix for path in paths] == [".service", ".timer"]
    command = ["systemd-analyze", "verify", "--man=no", *map(str, paths)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "serving-backup" not in done.stderr


@needs_systemd
def test_systemd_rejects_a_unit_with_a_missing_program() -> None:
    text = unit_text(["/no/such/program"], STATE, [], is_root=True)
    assert any("/no/such/program" in line for line in verify(text))


def test_systemd_specifiers_and_variables_are_escaped() -> None:
    text = unit_text(["/bin/true"], STATE, ["--x=$y"], is_root=True)
    assert "ExecStart=/bin/true up --systemd '--state=/var/lib/serving state/100%%' '--x=$$y'" in text


@pytest.mark.parametrize(
    ("option", "advice"),
    [("-d", "systemd runs it"), ("--reload", "systemctl reload"), ("--state=/x", "give --state before")],
)
def test_options_incompatible_with_a_unit_are_rejected(option: str, advice: str) -> None:
    done = CliRunner().invoke(main, ["install-service", "--print", "--", option])
    assert done.exit_code == 2
    assert advice in done.output


def test_modified_user_unit_is_replaced_only_with_replace_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(service, "_program", lambda: ["/bin/true"])
    path = tmp_path / "systemd" / "user" / "serving.service"

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["install-service", f"--state={tmp_path}", *arguments])
        return done.exit_code, done.output

    assert "[Service]" in run("--print")[1]
    assert not path.exists()
    code, message = run()
    assert (code, path.exists()) == (0, True)
    assert "systemctl --user enable --now serving" in message
    assert "loginctl enable-linger" in message
    path.write_text(path.read_text() + "# mine\n")
    code, message = run()
    assert code == 1
    assert "exists and differs" in message
    assert run("--replace", "--", "--public-port=80")[0] == 0
    assert "--public-port=80" in path.read_text()


def test_invalid_up_option_is_rejected_and_no_unit_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for wrong, error in (
        (["--dry-run"], "No such option '--dry-run'"),
        (["--public-port=80", "hello"], "unexpected extra argument (hello)"),
        (["--activators=0"], "0 is not in the range"),
    ):
        done = CliRunner().invoke(main, ["install-service", f"--state={tmp_path}", "--", *wrong])
        assert done.exit_code == 2
        assert error in done.output
        assert list(tmp_path.iterdir()) == []
