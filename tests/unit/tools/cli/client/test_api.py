import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from serving.home.state import kubeconfig
from serving.tools.cli.main import main

# No process listens on port 9, which is privileged and unused.
CLOSED_URL = "http://127.0.0.1:9"


def serving(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"KUBECONFIG": None, **environment})


@pytest.mark.parametrize("flags", [("--memory", "0"), ("--cpu", "-1"), ("--cpu", "x")])
def test_non_positive_resource_limit_is_rejected(flags: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig("https://127.0.0.1:1", "secret"), encoding="utf-8")
    done = serving("update", "hello", *flags, "--state", str(tmp_path))
    assert done.exit_code == 2
    assert f"{' '.join(flags)!r} is not a limit: it is more than 0" in done.stderr or "a cpu quantity" in done.stderr


def test_missing_kubeconfig_is_reported_with_advice_to_start_the_system(tmp_path: Path) -> None:
    done = serving("get", "--state", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"{tmp_path}/kubeconfig: no such file; start the system with `serving up`, or name")


def test_missing_kubeconfig_of_the_default_state_folder_is_reported(tmp_path: Path) -> None:
    done = serving("url", "hello", XDG_STATE_HOME=str(tmp_path))
    assert f"{tmp_path}/serving/kubeconfig: no such file" in done.stderr


def test_unreachable_api_is_reported_with_its_state_folder(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig(CLOSED_URL, "t"))
    done = serving("get", "--state", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr == (
        f"the API at {CLOSED_URL} does not answer: Connection refused; is `serving up` running?"
        f" Its state folder is {tmp_path}\n"
    )


def test_kubeconfig_option_precedes_environment_and_default(tmp_path: Path) -> None:
    named, other = tmp_path / "named", tmp_path / "other"
    done = serving("get", "--kubeconfig", str(named), KUBECONFIG=str(other))
    assert (done.exit_code, done.stderr.startswith(f"{named}: not readable: No such file")) == (2, True)
    done = serving("get", KUBECONFIG=f"{other}:{named}", XDG_STATE_HOME=str(tmp_path))
    assert (done.exit_code, done.stderr.startswith(f"{other}: not readable: No such file")) == (2, True)


def test_kubeconfigs_are_merged_as_by_kubectl(tmp_path: Path) -> None:
    """The first file with a current context decides, a context may use another file's cluster, and files may be missing or empty."""
    first, empty, second = tmp_path / "first", tmp_path / "empty", tmp_path / "second"
    first.write_text("current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u, namespace: n}}]\n")
    empty.write_text("")
    second.write_text(
        f"current-context: y\nclusters: [{{name: c, cluster: {{server: '{CLOSED_URL}'}}}}, {{name: d, cluster: {{server: 'http://127.0.0.1:2'}}}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: y, context: {cluster: d, user: u}}]\n"
    )
    named = f"{tmp_path / 'missing'}:{empty}:{first}:{second}"
    assert f"the API at {CLOSED_URL} does not answer" in serving("get", KUBECONFIG=named).stderr
    assert "the API at http://127.0.0.1:2 does not" in serving("get", "--context", "y", KUBECONFIG=named).stderr
    local = tmp_path / "local"
    local.write_text(kubeconfig("http://127.0.0.1:3", "t"))
    assert "the API at http://127.0.0.1:3 does not" in serving("get", KUBECONFIG=f"{local}:{named}").stderr
    second.write_text("{")
    wrong = serving("get", KUBECONFIG=named)
    assert (wrong.exit_code, wrong.stderr.startswith(f"{second}: not readable: ")) == (2, True)


@pytest.mark.parametrize("text", ["{", "3", "a: b", "apiVersion: v1\nkind: Config\nclusters: []\n"])
def test_an_invalid_kubeconfig_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    done = serving("get", "--kubeconfig", str(path))
    assert (done.exit_code, done.stderr.startswith(f"{path}: "), done.stdout) == (2, True, "")
    assert len(done.stderr.splitlines()) == 1


def test_unknown_context_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(json.loads(kubeconfig(CLOSED_URL, "t"))))
    done = serving("get", "--kubeconfig", str(path), "--context", "nope")
    assert (done.exit_code, done.stderr) == (2, f"{path}: there is no context nope; expected one of serving\n")
