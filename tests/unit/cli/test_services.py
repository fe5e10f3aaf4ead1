from pathlib import Path

import pytest
from click.testing import CliRunner

from serving.cli.main import main
from serving.cli.services import Deployment, manifest_of
from serving.cluster.admission import admit
from serving.cluster.kinds import SERVING_SERVICE


def asked(*pairs: str) -> Deployment:
    return Deployment(
        name="shout",
        folder=Path("/app"),
        command="python app.py",
        pairs=pairs,
        concurrency=10,
        annotate=("autoscaling.knative.dev/max-scale=3",),
    )


def test_a_command_becomes_a_service_that_the_api_takes() -> None:
    manifest = manifest_of(asked("A=b=c"))
    template = manifest["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "serving.dev/command": "python app.py",
        "serving.dev/dir": "/app",
        "autoscaling.knative.dev/max-scale": "3",
    }
    assert template["spec"]["containers"] == [{"image": "shout", "env": [{"name": "A", "value": "b=c"}]}]
    manifest["metadata"]["namespace"] = "default"
    assert admit(SERVING_SERVICE, manifest)["spec"]["template"]["spec"]["containerConcurrency"] == 10


def test_a_pair_without_a_value_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        manifest_of(asked("A"))
    assert "'A' is not right; expected NAME=VALUE" in capsys.readouterr().err


def test_without_a_running_system_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["get", "--state", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (
        1,
        f"{tmp_path}/kubeconfig: there is none; start the system with `serving up`\n",
    )


def test_an_api_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(
        '{"clusters": [{"cluster": {"server": "http://127.0.0.1:9"}}], "users": [{"user": {"token": "t"}}]}'
    )
    done = CliRunner().invoke(main, ["get", "--state", str(tmp_path)])
    assert done.exit_code == 1
    assert "is `serving up` running?" in done.stderr
