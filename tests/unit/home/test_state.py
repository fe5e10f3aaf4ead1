import base64
import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from serving.core.model.errors import SettingsError
from serving.home.state import StateFolder, default_state_path, kubeconfig, naming


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secret_files_are_readable_by_owner_only(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    state.open("http://127.0.0.1:6080")
    assert mode_of(state.path) == 0o700
    assert {mode_of(path) for path in (*state.secrets, state.kubeconfig)} == {0o600}
    assert len(state.key.read_bytes()) == 32


def test_reopened_state_folder_has_the_same_secrets(tmp_path: Path) -> None:
    first = StateFolder(tmp_path)
    first.open("http://127.0.0.1:6080")
    key, token = first.key.read_bytes(), first.token.read_text()
    os.close(first.lock_fd)
    second = StateFolder(tmp_path)
    second.open("http://127.0.0.1:7080")
    assert (second.key.read_bytes(), second.token.read_text()) == (key, token)
    content = json.loads(second.kubeconfig.read_text())
    assert content["clusters"][0]["cluster"]["server"] == "http://127.0.0.1:7080"
    assert content["users"][0]["user"] == {"token": token}


@pytest.mark.parametrize("text", [b"", b"two words", b"line\n", b"\xff\xfe", "café".encode()])
def test_invalid_token_file_is_rejected_with_its_path(tmp_path: Path, text: bytes) -> None:
    tmp_path.joinpath("token").write_bytes(text)
    with pytest.raises(SettingsError, match=r"/token.*not a bearer token.*without the file a new one is made"):
        StateFolder(tmp_path).open("http://127.0.0.1:1")


def test_locked_state_folder_error_names_the_process(tmp_path: Path) -> None:
    StateFolder(tmp_path).open("http://127.0.0.1:6080")
    with pytest.raises(SettingsError, match=f"process {os.getpid()} holds this state folder"):
        StateFolder(tmp_path).open("http://127.0.0.1:6080")


def test_default_state_path_follows_xdg_state_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_state_path() == Path("/state/serving")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/me")
    assert default_state_path() == Path("/me/.local/state/serving")


def test_kubeconfig_is_valid_yaml_and_json() -> None:
    text = kubeconfig("http://127.0.0.1:6080", "t0k-_en")
    assert yaml.safe_load(text) == json.loads(text)


def test_kubeconfig_has_token_in_user_and_not_in_url() -> None:
    content = json.loads(kubeconfig("https://127.0.0.1:6080/", "abc", authority="PEM"))
    (cluster,) = content["clusters"]
    assert cluster["cluster"] == {
        "server": "https://127.0.0.1:6080",
        "certificate-authority-data": base64.b64encode(b"PEM").decode(),
    }
    assert content["users"][0]["user"] == {"token": "abc"}


def test_full_disk_error_has_a_path() -> None:
    with pytest.raises(OSError, match="No space left on device: '/the/file'"), naming(Path("/the/file")):
        Path("/dev/full").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="'/absent'"), naming(Path("/the/file")):
        Path("/absent").read_bytes()
