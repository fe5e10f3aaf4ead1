"""Each key of the ConfigMaps at another value: the system reloads with it, and a service responds."""

import json
import time
from collections.abc import Iterator

import httpx
import pytest

from serving.core.settings.daemons import ACTIVATOR, AUTOSCALER, CONTROLLER
from serving.core.settings.knob import Field, Value
from serving.core.settings.queueproxy import QUEUEPROXY
from tests.e2e.cli_stage import SAMPLE, Stage, staged

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

_PATIENCE_S = 120.0
# Other values of these keys redirect requests, or apply only to clusters.
_NOT_HERE = {"http-protocol", "sidecar.enabled", "gateway"}


def another(field: Field) -> Value | None:
    """A valid value near the default; None for text settings."""
    knob, default = field.knob, field.default
    if knob.choices:
        return knob.choices[-1] if default != knob.choices[-1] else knob.choices[0]
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return None
    near = (default * 1.25, default / 1.25, default + 1, default - 1, *knob.also)
    values = (type(default)(value) if isinstance(default, int) else value for value in near)
    whole = (float(round(value)) if knob.whole else value for value in values)
    return next((value for value in whole if value != default and knob.admits(value)), None)


def settings() -> dict[str, dict[str, str]]:
    """Keys with values, by ConfigMap."""
    result: dict[str, dict[str, str]] = {}
    for daemon in (ACTIVATOR, AUTOSCALER, CONTROLLER, QUEUEPROXY):
        for field in daemon.fields():
            value = another(field)
            if value is not None and field.knob.key not in _NOT_HERE:
                written = field.knob.unit.write(value)
                result.setdefault(field.knob.config_map or daemon.config_map, {})[field.knob.key] = written
    return result


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    state = tmp_path_factory.mktemp("settings") / "state"
    with staged(state) as new_stage:
        new_stage("deploy", "hello", str(state), "--command", SAMPLE)
        yield new_stage


@pytest.mark.parametrize("name", sorted(settings()))
def test_service_responds_with_every_setting_changed(stage: Stage, name: str) -> None:
    metadata = {"name": name, "namespace": "knative-serving"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": settings()[name]}
    stage("apply", "-f", "-", stdin=json.dumps(body))
    stage("up", "--reload")
    try:
        assert response_status(stage) == 200
    finally:
        stage("delete", f"configmap/{name}", "-n", "knative-serving")


def response_status(stage: Stage) -> int:
    """The status of a request, repeated until 200, as another mode of inner TLS replaces pods."""
    port, until_s = json.loads((stage.state / "ports.json").read_text())["public"], time.monotonic() + _PATIENCE_S
    while True:
        host = {"Host": "hello.default.localhost"}
        status = httpx.get(f"http://127.0.0.1:{port}/", headers=host, trust_env=False, timeout=60).status_code
        if status == 200 or time.monotonic() > until_s:
            return status
        time.sleep(0.1)
