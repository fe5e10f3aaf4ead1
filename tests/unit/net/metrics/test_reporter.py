import logging
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence

import msgspec
import pytest

from serving.net.metrics.reporter import Labels, Row, Source, StatsReporter, opencensus_views
from tests.unit.net.metrics.builders import numbers

# The autoscaler's page in a process that cannot import opencensus.
_WITHOUT = """
import logging, sys
sys.modules["opencensus"] = None
logging.basicConfig(format="%(message)s", stream=sys.stdout)
from serving.net.metrics.autoscaler import AutoscalerMetrics
from serving.core.model.revisionnumbers import PodCounts
from tests.unit.net.metrics.builders import numbers
metrics = AutoscalerMetrics(
    keys=lambda: {("default", "hello-00001")}, counts=dict, pods=lambda _: PodCounts(), costs=lambda _: None
)
metrics.decided(numbers(desired_count=3))
metrics.decided(numbers(desired_count=4))
print(metrics.page.text(""))
"""


def pulled(reporter: StatsReporter) -> dict[str, list[Row]]:
    return dict(reporter.pull())


class Breaking(Source):
    """Opencensus views with one method that raises."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._views = opencensus_views()

    def _call(self, name: str) -> Source:
        if name == self._name:
            raise TypeError("an interface that this Python does not have")
        return self._views

    def record(self, labels: Labels, values: Sequence[int | None]) -> None:
        self._call("record").record(labels, values)

    def drop(self, rows: Collection[Labels]) -> None:
        self._call("drop").drop(rows)

    def pull(self) -> Iterator[tuple[str, list[Row]]]:
        return self._call("pull").pull()


def test_reporter_returns_last_values_of_each_revision() -> None:
    reporter = StatsReporter()
    reporter.report(numbers(desired_count=9))
    reporter.report(numbers(desired_count=5, requested_count=4, ready_count=3, is_panic=True))
    key = ("default", "hello", "hello-00001")
    assert pulled(reporter) == {
        "kn_revision_pods_desired": [(key, 5.0)],
        "kn_revision_pods_requested": [(key, 4.0)],
        "kn_revision_pods_count": [(key, 3.0)],
        "kn_revision_panic_mode": [(key, 1.0)],
    }


def test_reporters_share_no_values() -> None:
    StatsReporter().report(numbers())
    assert pulled(StatsReporter()) == {}


def test_desired_count_is_retained_without_data() -> None:
    reporter = StatsReporter()
    reporter.report(numbers(desired_count=5))
    reporter.report(numbers(desired_count=None, requested_count=2))
    assert [value for _, value in pulled(reporter)["kn_revision_pods_desired"]] == [5.0]
    assert [value for _, value in pulled(reporter)["kn_revision_pods_requested"]] == [2.0]


def test_rows_of_deleted_revisions_are_dropped() -> None:
    reporter = StatsReporter()
    for name in ("a", "b"):
        reporter.report(numbers(revision=name))
    reporter.retain({("default", "b")})
    assert [key[2] for key, _ in pulled(reporter)["kn_revision_pods_count"]] == ["b"]
    assert len(reporter) == 1


def test_revision_with_changed_configuration_has_one_row() -> None:
    reporter = StatsReporter()
    reporter.report(numbers(configuration=""))
    reporter.report(numbers(configuration="hello"))
    assert [key for key, _ in pulled(reporter)["kn_revision_pods_count"]] == [("default", "hello", "hello-00001")]


def test_two_thousand_reports_of_500_revisions_take_less_than_2_cpu_seconds() -> None:
    # If the views were copied after each measurement, as opencensus does by default, this would take half a minute.
    reporter = StatsReporter()
    every = [msgspec.structs.replace(numbers(), revision=f"r{index}") for index in range(500)]
    begun_s = time.process_time()
    for _ in range(4):
        for revision_numbers in every:
            reporter.report(revision_numbers)
    assert time.process_time() - begun_s < 2.0


@pytest.mark.parametrize("name", ["record", "drop", "pull"])
def test_failed_opencensus_call_is_logged_once_and_loses_no_value(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    reporter, whole = StatsReporter(lambda: Breaking(name)), StatsReporter()
    for each in (reporter, whole):
        each.report(numbers(desired_count=5))
        each.report(numbers(revision="gone"))
        each.report(numbers(desired_count=None, requested_count=7))
        each.retain({("default", "hello-00001")})
    assert pulled(reporter) == pulled(whole)
    assert pulled(reporter) == pulled(whole)
    assert [record.getMessage() for record in caplog.records] == ["opencensus.failed"]


def test_metrics_page_is_complete_without_opencensus() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("opencensus")] == ["opencensus.failed"]
    (desired,) = (line for line in lines if line.startswith("kn_revision_pods_desired{"))
    assert desired.endswith('kn_revision_name="hello-00001"} 4.0')


def test_opencensus_import_emits_no_warning() -> None:
    program = (
        "from serving.net.metrics.reporter import StatsReporter; from tests.unit.net.metrics.builders import numbers;"
        "reporter = StatsReporter(); reporter.report(numbers()); print(len(list(reporter.pull())), reporter._views)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("4 <serving.net.metrics.views.OpencensusViews")
