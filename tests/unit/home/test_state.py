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


def test_what_is_secret_is_for_its_owner_only(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "state")
    state.open("http://127.0.0.1:6080")
    assert mode_of(state.path) == 0o700
    assert {mode_of(path) for path in (*state.secrets, state.kubeconfig)} == {0o600}
    assert len(state.key.read_bytes()) == 32


def test_secrets_stay_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    first = StateFolder(tmp_path)
    first.open("http://127.0.0.1:6080")
    key, token = first.key.read_bytes(), first.token.read_text()
    os.close(first._lock_fd or 0)
    second = StateFolder(tmp_path)
    second.open("http://127.0.0.1:7080")
    assert (second.key.read_bytes(), second.token.read_text()) == (key, token)
    content = json.loads(second.kubeconfig.read_text())
    assert content["clusters"][0]["cluster"]["server"] == "http://127.0.0.1:7080"
    assert content["users"][0]["user"] == {"token": token}


@pytest.mark.parametrize("text", [b"", b"two words", b"line\n", b"\xff\xfe", "café".encode()])
def test_a_token_that_no_request_can_carry_is_refused_with_its_file(tmp_path: Path, text: bytes) -> None:
    tmp_path.joinpath("token").write_bytes(text)
    with pytest.raises(SettingsError, match=r"/token.*not a bearer token.*without the file a new one is made"):
        StateFolder(tmp_path).open("http://127.0.0.1:1")


def test_a_folder_that_is_held_says_by_whom(tmp_path: Path) -> None:
    StateFolder(tmp_path).open("http://127.0.0.1:6080")
    with pytest.raises(SettingsError, match=f"process {os.getpid()} holds this state folder"):
        StateFolder(tmp_path).open("http://127.0.0.1:6080")


def test_state_is_kept_where_the_desktop_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_state_path() == Path("/state/serving")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/me")
    assert default_state_path() == Path("/me/.local/state/serving")


def test_the_file_is_yaml_and_json() -> None:
    text = kubeconfig("http://127.0.0.1:6080", "t0k-_en")
    assert yaml.safe_load(text) == json.loads(text)


def test_the_token_is_the_users_and_not_in_the_url() -> None:
    content = json.loads(kubeconfig("https://127.0.0.1:6080/", "abc", authority="PEM"))
    (cluster,) = content["clusters"]
    assert cluster["cluster"] == {
        "server": "https://127.0.0.1:6080",
        "certificate-authority-data": base64.b64encode(b"PEM").decode(),
    }
    assert content["users"][0]["user"] == {"token": "abc"}


def test_an_error_of_a_full_disk_has_a_path() -> None:
    with pytest.raises(OSError, match="No space left on device: '/the/file'"), naming(Path("/the/file")):
        Path("/dev/full").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="'/absent'"), naming(Path("/the/file")):
        Path("/absent").read_bytes()
