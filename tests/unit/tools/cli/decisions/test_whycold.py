from typing import Any

from serving.tools.cli.decisions.whycold import cold_lines


def cold_start(took_s: float, **steps: float) -> dict[str, Any]:
    return {"at_s": 0.0, "took_s": took_s, "steps": {name.replace("_", " "): value for name, value in steps.items()}}


def test_bars_begin_where_the_one_before_ended_and_fill_the_width() -> None:
    median = cold_start(0.1, pod_is_created=0.025, app_starts=0.075) | {"advice": "Do less."}
    found = {"revision": "default/hello-00001", "starts": [median], "median": median}
    assert list(cold_lines(found)) == [
        "hello-00001: median of 1 cold start, 100 ms",
        f"  pod is created         25 ms  {'█' * 10}",
        f"  app starts             75 ms  {' ' * 10}{'█' * 30}",
        "Do less.",
    ]


def test_several_starts_are_listed_below_their_median() -> None:
    starts = [cold_start(0.1, app_starts=0.1), cold_start(0.0)]
    found = {"revision": "default/hello-00001", "starts": starts, "median": starts[0] | {"advice": "x"}}
    lines = list(cold_lines(found))
    assert lines[0] == "hello-00001: median of 2 cold starts, 100 ms"
    assert [line for line in lines if "hello-00001 " in line][1].endswith(" hello-00001 0.0 ms")


def test_without_a_cold_start_there_is_nothing() -> None:
    assert list(cold_lines({"revision": "default/x", "starts": [], "median": {}})) == []
