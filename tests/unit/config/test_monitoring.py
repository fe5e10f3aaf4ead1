"""The rules and the dashboard of the monitoring component."""

import json

import yaml

from tests.unit.config.monitoring import CONFIG, written


def test_monitoring_component_equals_its_sources() -> None:
    for path, content in written().items():
        assert path.read_text() == content, f"{path.name}: make config writes it"
    (rules, board) = (yaml.safe_load(content) for content in written().values())
    assert rules["spec"] == yaml.safe_load((CONFIG / "monitoring" / "alerts.yaml").read_text())
    source = json.loads((CONFIG / "monitoring" / "grafana-dashboard.json").read_text())
    assert json.loads(board["data"]["serving.json"]) == source
