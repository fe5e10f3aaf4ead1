import pytest
from click.testing import CliRunner

from serving.tools.cli.main import main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_calls_serving(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert (done.exit_code, f"_SERVING_COMPLETE={shell}_complete" in done.stdout) == (0, True)


def test_completion_without_a_server_prints_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("_SERVING_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"serving describe --state {tmp_path} h")
    monkeypatch.setenv("COMP_CWORD", "4")
    done = CliRunner().invoke(main, prog_name="serving", env={"KUBECONFIG": None})
    assert (done.stdout.strip(), done.stderr) == ("", "")
