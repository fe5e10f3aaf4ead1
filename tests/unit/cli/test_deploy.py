from pathlib import Path

import pytest

from serving.cli.deploy import Deployment, manifest_of
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


def test_only_what_is_said_is_written() -> None:
    plain = manifest_of(Deployment(name="a", folder=Path("/b"), command="c"))["spec"]["template"]
    assert plain["spec"] == {"containers": [{"image": "a", "env": []}]}
    told = Deployment(
        name="a",
        folder=Path("/b"),
        command="c",
        image="registry/x",
        port=9000,
        concurrency=0,
        timeout=5,
        scaling={"min_scale": "1", "window": "6s"},
    )
    template = manifest_of(told)["spec"]["template"]
    assert template["spec"] == {
        "containers": [{"image": "registry/x", "env": [], "ports": [{"containerPort": 9000}]}],
        "containerConcurrency": 0,
        "timeoutSeconds": 5,
    }
    annotations = template["metadata"]["annotations"]
    assert (annotations["autoscaling.knative.dev/min-scale"], annotations["autoscaling.knative.dev/window"]) == (
        "1",
        "6s",
    )


@pytest.mark.parametrize(("port", "expected"), [(None, 8080), (9000, 9000)])
def test_an_app_of_http2_has_a_port_that_says_so(port: int | None, expected: int) -> None:
    told = Deployment(name="a", folder=Path("/b"), command="c", h2c=True, port=port)
    (container,) = manifest_of(told)["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "h2c", "containerPort": expected}]
