import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from serving.net.metrics.names import ACTIVATOR_METRICS
from serving.net.metrics.page import OPENMETRICS_TYPE, TEXT_TYPE, MetricsPage, is_openmetrics, wanted_type

OPEN = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


@pytest.fixture
def page() -> MetricsPage:
    metrics_page = MetricsPage(ACTIVATOR_METRICS)
    # Process metrics differ at each collection.
    metrics_page.registry = CollectorRegistry()
    counter = Counter("asked", 'A "help" with \\ and\na second line.', ["name"], registry=metrics_page.registry)
    for value in ("plain", 'qu"ote', "back\\slash", "new\nline", ""):
        counter.labels(value).inc()
    Gauge("level", "Without labels.", registry=metrics_page.registry).set(float("inf"))
    histogram = Histogram("took_seconds", "Time.", ["a", "b"], registry=metrics_page.registry)
    histogram.labels("x", "y").observe(0.3, {"trace_id": "0af7"})
    return metrics_page


def test_text_format_equals_prometheus_client(page: MetricsPage) -> None:
    assert page.text("text/plain") == generate_latest(page.registry).decode()


def test_openmetrics_format_equals_prometheus_client(page: MetricsPage) -> None:
    assert page.text(OPEN) == generate_openmetrics(page.registry).decode()
    assert '# {trace_id="0af7"} 0.3' in page.text(OPEN)


def test_long_page_is_split_into_slices_of_500_lines(page: MetricsPage) -> None:
    counter = Counter("many", "Many.", ["n"], registry=page.registry)
    for index in range(2000):
        counter.labels(str(index)).inc()
    assert max(piece.count("\n") for piece in page.slices("")) == 500


@pytest.mark.parametrize(
    ("accept", "is_open"), [("", False), ("*/*", False), ("text/plain", False), (OPEN, True), ("a, " + OPEN, True)]
)
def test_openmetrics_is_served_only_if_accepted(accept: str, is_open: bool) -> None:
    assert is_openmetrics(accept) is is_open
    assert wanted_type(accept) == (OPENMETRICS_TYPE if is_open else TEXT_TYPE)
