"""What is asked of SignalFx, and what its answers say."""

import json

import pytest

from serving.extender.signalfx import metadata_parameters, metrics_of, points_parameters, read_series
from serving.model.errors import InvalidValue
from serving.model.nodata import NoData
from serving.placement.scores.metrics import Usage
from serving.settings.loadsource import LoadSourceSettings

_SETTINGS = LoadSourceSettings(node_label="node")


def test_what_is_asked() -> None:
    assert metrics_of(LoadSourceSettings(cpu_metric="mine")) == {"cpu": "mine", "memory": "memory.utilization"}
    assert points_parameters(_SETTINGS, "mine", end_s=1000.0, window_s=900.0) == {
        "query": 'node:* AND sf_metric:"mine"',
        "startMs": "100000",
        "endMs": "1000000",
        "resolution": "60000",
    }
    blue = LoadSourceSettings(cluster="blue", host_suffix=".x")
    assert metadata_parameters(blue, "m") == {"query": 'host:*.x AND cluster:blue AND sf_metric:"m"', "limit": "10000"}


def test_series_become_nodes() -> None:
    points = json.dumps({"data": {"1": [[0, 10], [1, 30]], "2": [[0, None]], "3": [[0, 5]]}}).encode()
    results = [
        {"id": "1", "dimensions": {"node": "a"}},
        {"id": "2", "dimensions": {"node": "b"}},
        {"id": "3", "dimensions": {"node": None}},
        {"id": "", "dimensions": {"node": "c"}},
    ]
    found = read_series(points, json.dumps({"results": results}).encode(), _SETTINGS)
    assert found["a"] == Usage(mean_percent=20.0, deviation_percent=10.0)
    assert isinstance(found["b"], NoData)
    assert found.keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("points", "metadata", "words"),
    [(b"{}", b'{"results": []}', "points of SignalFx"), (b'{"data": {}}', b"[]", "series of SignalFx")],
)
def test_anything_else_is_refused(points: bytes, metadata: bytes, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        read_series(points, metadata, _SETTINGS)
