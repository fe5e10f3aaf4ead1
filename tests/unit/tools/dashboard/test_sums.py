import math
from typing import Any

from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.sums import summary


def table(*rows: tuple[float, dict[str, float | None]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [values.get(name) for _, values in rows] for name in COLUMNS}
    return {"at_s": [at_s for at_s, _ in rows], **columns}


def test_rows_are_summed_over_their_time() -> None:
    found = summary(
        "hello-00001",
        table(
            (0, {"ready": 2, "rps_2xx": 1.5, "rps_5xx": 0.5, "p99_s": 0.2}),
            (60, {"ready": 4, "rps_2xx": 1, "p99_s": 0.1}),
            # The dashboard did not run, for an hour.
            (120, {}),
            (3720, {"ready": 0, "rps_2xx": 2}),
        ),
    )
    # The last row counts as long as the one before it, at most ten minutes.
    assert (found.requests, found.errors) == (90 + 30 + 60 + 1200, 30)
    assert (found.pods_max, found.p99_max_s) == (4, 0.2)
    assert math.isclose(found.pod_hours, (2 * 60 + 4 * 60) / 3600)
    assert math.isclose(found.pods_mean, (2 * 60 + 4 * 60) / 720)


def test_one_row_alone_stands_for_no_time() -> None:
    found = summary("hello-00001", table((5, {"ready": 1, "rps_2xx": 3})))
    assert (found.requests, found.pods_mean, found.p99_max_s) == (0, 0.0, None)
