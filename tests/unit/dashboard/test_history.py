import math

from serving.dashboard.history import COLUMNS, RevisionHistory

ROW = [float(number) for number in range(len(COLUMNS))]


def test_rows_are_read_back_by_column_with_their_times() -> None:
    history = RevisionHistory(10)
    history.add(100.0, {"default/a": ROW})
    history.add(102.0, {"default/a": [None, *ROW[1:]], "default/b": ROW})
    found = history.read("default/a")
    assert found["at_s"] == [100.0, 102.0]
    assert math.isnan(found["running"][1])
    assert found["p99_s"] == [float(len(COLUMNS) - 1)] * 2
    assert history.read("default/b")["at_s"] == [102.0]


def test_an_hour_is_kept_and_no_more() -> None:
    history = RevisionHistory(10)
    for number in range(1000):
        history.add(number, {"default/a": ROW} | ({"default/b": ROW} if number > 995 else {}))
    assert history.read("default/a")["at_s"] == [float(number) for number in range(990, 1000)]
    assert history.read("default/b")["at_s"] == [996.0, 997.0, 998.0, 999.0]
    assert len(history._times) < 10 + 128


def test_a_revision_that_is_gone_has_no_past() -> None:
    history = RevisionHistory(10)
    history.add(0.0, {"default/a": ROW})
    history.add(2.0, {})
    assert history.read("default/a") == {"at_s": [], **{name: [] for name in COLUMNS}}
