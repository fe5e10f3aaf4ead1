"""Load reports and their load-watcher JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import InvalidValue
from serving.core.model.nodata import NoData
from serving.core.settings.placement import PlacementQuirks
from serving.nodes.extender.loadreport import LoadReport, read_watcher_body, watcher_body, window_text
from serving.nodes.placement.scores.metrics import NodeUsage, Usage

_NONE = NoData(missing="measurement")
_PERCENT = st.floats(0, 100)
_USAGE = st.builds(Usage, mean_percent=_PERCENT, deviation_percent=_PERCENT)


def read(body: bytes) -> LoadReport:
    return read_watcher_body(body, quirks=PlacementQuirks())


@given(st.dictionaries(st.text("abc-", min_size=1), st.tuples(_USAGE, _USAGE), min_size=1))
def test_report_round_trips_through_watcher_json(usages: dict[str, tuple[Usage, Usage]]) -> None:
    node_usages = {name: NodeUsage(at_s=900.0, cpu=cpu, memory=memory) for name, (cpu, memory) in usages.items()}
    report = LoadReport(source="here", at_s=900.0, window_s=600.0, usages=node_usages)
    body = watcher_body(report)
    assert body is not None
    assert read(body) == report


def test_report_json_has_load_watcher_field_names() -> None:
    usage = NodeUsage(at_s=1000.0, cpu=Usage(mean_percent=12.5, deviation_percent=math.nan), memory=_NONE)
    report = LoadReport(source="Prometheus", at_s=1000.9, window_s=900.0, usages={"a": usage, "b": usage})
    body = watcher_body(report, host="a")
    assert body is not None
    assert json.loads(body) == {
        "timestamp": 1000,
        "window": {"duration": "15m", "start": 100, "end": 1000},
        "source": "Prometheus",
        "data": {
            "NodeMetricsMap": {
                "a": {
                    "metrics": [{"name": "CPU.avg", "type": "CPU", "operator": "AVG", "rollup": "15m", "value": 12.5}],
                    "tags": {},
                    "metadata": {"dataCenter": ""},
                }
            }
        },
    }
    assert watcher_body(report, host="c") is None


def test_nodes_without_metrics_list_are_omitted() -> None:
    nodes = {"a": None, "b": {"metrics": None}, "c": {"metrics": [{"type": "CPU", "operator": "AVG", "value": None}]}}
    report = read(json.dumps({"window": {"start": 5, "end": 1}, "data": {"NodeMetricsMap": nodes}}).encode())
    assert report.usages.keys() == {"c"}
    assert isinstance(report.usages["c"].cpu, NoData)
    assert (report.source, report.window_s) == ("load-watcher", 0.0)
    assert read(b'{"window": {}, "data": {}}').usages == {}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"window": {"end": "x"}, "data": {}}', b'{"data": {}}'])
def test_invalid_watcher_body_is_rejected_with_expected_field(body: bytes) -> None:
    with pytest.raises(InvalidValue, match=r"data\.NodeMetricsMap"):
        read(body)


@pytest.mark.parametrize(("window_s", "text"), [(3600, "15m"), (900, "15m"), (899, "10m"), (300, "5m"), (1, "5m")])
def test_window_text_rounds_down_to_load_watcher_window(window_s: float, text: str) -> None:
    assert window_text(window_s) == text
