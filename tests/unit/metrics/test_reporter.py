import time

import msgspec

from serving.metrics.reporter import StatsReporter
from tests.unit.metrics.builders import numbers


def pulled(reporter: StatsReporter) -> dict[str, list[tuple[tuple[str, str, str], float]]]:
    return dict(reporter.pull())


def test_the_last_values_of_each_revision_are_there() -> None:
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


def test_two_reporters_share_nothing() -> None:
    StatsReporter().report(numbers())
    assert pulled(StatsReporter()) == {}


def test_without_data_the_desired_count_stays() -> None:
    reporter = StatsReporter()
    reporter.report(numbers(desired_count=5))
    reporter.report(numbers(desired_count=None, requested_count=2))
    assert [value for _, value in pulled(reporter)["kn_revision_pods_desired"]] == [5.0]
    assert [value for _, value in pulled(reporter)["kn_revision_pods_requested"]] == [2.0]


def test_rows_of_revisions_that_are_gone_are_dropped() -> None:
    reporter = StatsReporter()
    for name in ("a", "b"):
        reporter.report(numbers(revision=name))
    reporter.keep({("default", "b")})
    assert [key[2] for key, _ in pulled(reporter)["kn_revision_pods_count"]] == ["b"]
    assert len(reporter) == 1


def test_a_revision_of_another_configuration_has_one_row() -> None:
    reporter = StatsReporter()
    reporter.report(numbers(configuration=""))
    reporter.report(numbers(configuration="hello"))
    assert [key for key, _ in pulled(reporter)["kn_revision_pods_count"]] == [("default", "hello", "hello-00001")]


def test_a_report_costs_the_same_with_many_revisions() -> None:
    # Were the views copied after each measurement, as opencensus does, this would take half a minute.
    reporter = StatsReporter()
    every = [msgspec.structs.replace(numbers(), revision=f"r{index}") for index in range(500)]
    begun_s = time.process_time()
    for _ in range(4):
        for one in every:
            reporter.report(one)
    assert time.process_time() - begun_s < 2.0
