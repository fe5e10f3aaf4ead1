import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY
from serving.tools.cli.system.top import record_of, screen_of, shortened
from serving.tools.dashboard.board import COLUMNS
from tests.unit.tools.cli.system.test_top_topnodes import node

LONG = "a-service-with-a-name-that-is-as-long-as-names-may-be-and-more-00001"
FULL = {
    "running": 123.4,
    "held": 21,
    "target": 700,
    "ready": 10,
    "desired": 12,
    "dormant": 2,
    "rps_2xx": 12345,
    "rps_5xx": 99.9,
}
NUMBERS = ["10→12", "(2", "dormant)", "123.4", "▂", "21.0", "700", "12444.9", "99.9", "12345", "ms"]


def revision(name: str, row: dict[str, float], **view: str) -> tuple[dict[str, Any], list[float | None]]:
    shown = {"name": name, "namespace": "default", "ready": "True", "state": "Active"} | view
    return {"kind": "revision", "key": f"default/{name}", "view": shown}, [row.get(column) for column in COLUMNS]


def state_of(
    *revisions: tuple[dict[str, Any], list[float | None]],
    nodes: dict[str, Any] | None = None,
    policies: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    return {
        "columns": COLUMNS,
        "objects": [result for result, _ in revisions] + [{"kind": "service", "key": "default/x", "view": {}}],
        "rows": {entry["key"]: row for entry, row in revisions},
        "decisions": {"default/busy-00001": {"at_s": 0.0, "sentence": "3 → 8: panic", "wanted": 8}},
        "nodes": nodes,
        "policies": policies or [],
    }


def screen(
    *revisions: tuple[dict[str, Any], list[float | None]],
    nodes: dict[str, Any] | None = None,
    policies: list[dict[str, Any]] | None = None,
    width: int = 160,
    height: int | None = None,
) -> list[str]:
    state = state_of(*revisions, nodes=nodes, policies=policies)
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as caught:
        console.print(screen_of(state, width=width, height=height))
    return caught.get().splitlines()


BUSY = revision(
    "busy-00001",
    {"running": 20, "held": 5, "target": 21, "ready": 3, "desired": 3, "is_panic": 1, "rps_2xx": 50, "rps_5xx": 2, "p95_s": 0.25},
)  # fmt: skip
ASLEEP = revision("asleep-00001", {"ready": 0}, state="Reserve")
DORMANT = revision("quiet-00001", {"ready": 2, "desired": 2, "dormant": 2})
HALF = revision("half-00001", {"running": 1, "ready": 3, "desired": 3, "dormant": 1})
BROKEN = revision("broken-00001", {"ready": 0}, ready="False")
STARTING = revision("new-00001", {"ready": 0})


def test_top_shows_and_counts_dormant_pods() -> None:
    title, *lines = screen(DORMANT, HALF)
    assert title == "serving  2 revisions, 5 pods ready, 3 dormant"
    (half,) = (line for line in lines if line.startswith("half-00001"))
    (quiet,) = (line for line in lines if line.startswith("quiet-00001"))
    assert ("active" in half, "3 (1 dormant)" in half) == (True, True)
    assert ("dormant" in quiet, "(2" in quiet) == (True, False)


def test_busiest_revision_is_first_with_its_numbers_and_decision() -> None:
    # The decision is newer than the metric of desired pods and is shown in both places.
    lines = screen(ASLEEP, BROKEN, BUSY, STARTING)
    assert lines[0] == "serving  4 revisions, 3 pods ready"
    shown = [
        "busy-00001",
        "active",
        "3→8",
        "20.0",
        "█",
        "5.0",
        "21",
        "52.0",
        "-",
        "2.0",
        "-",
        "250",
        "ms",
        "-",
        "panic",
    ]
    assert lines[3].split()[:15] == shown
    assert lines[3].rstrip().endswith("3 → 8: panic")
    assert [line.split()[1] for line in lines[4:]] == ["at", "failed", "starting"]


def test_workload_row_shows_its_kind() -> None:
    title, _, _, row = screen(revision("shop", {"ready": 2}, kind="Deployment"))
    assert title == "serving  0 revisions, 1 workload, 2 pods ready"
    assert row.split()[:3] == ["shop", "(Deployment)", "active"]


def test_narrow_screen_shows_decisions_below_the_table() -> None:
    lines = screen(BUSY, ASLEEP, width=80)
    assert lines[-2].startswith("busy-00001 ")
    assert lines[-2].rstrip().endswith("3 → 8: panic")
    assert max(len(line) for line in lines) <= 80


def test_nodes_are_listed_below_revisions_within_the_screen_height() -> None:
    many = [revision(f"r-{number:03}", {"ready": 1}) for number in range(50)]
    lines = [node(f"n-{number}", 10.0 - number) for number in range(9)]
    shown = screen(*many, nodes={"count": 12, "lines": lines}, height=30)
    assert len(shown) <= 30
    first = next(place for place, line in enumerate(shown) if line.startswith("NODE"))
    assert [line.split()[0] for line in shown[first + 1 : first + 5]] == ["n-0", "n-1", "n-2", "n-3"]
    assert shown[-1].strip() == "and 8 more"
    assert any(line.startswith("r-017") for line in shown)
    everything = screen(*many, nodes={"count": 9, "lines": lines})
    assert sum(line.startswith(("r-", "n-")) for line in everything) == 59


def test_narrow_screen_output_fits_its_height() -> None:
    many = [revision(f"r-{number:03}", {"ready": 1}) for number in range(50)]
    shown = screen(*many, nodes={"count": 1, "lines": [node("n")]}, width=80, height=24)
    assert len(shown) <= 24
    assert shown[-1].startswith("n ")


def test_savings_are_summed_in_one_line_per_active_policy() -> None:
    def policy(cold: float, covered_s: float, running: str = ADAPTIVE_POLICY) -> dict[str, Any]:
        costs = {"adaptive_pod_seconds": 600.0, "adaptive_cold_requests": cold, "knative_pod_seconds": 1800.0}
        costs |= {"knative_cold_requests": 5.0, "covered_s": covered_s}
        return {"namespace": "default", "policy": running, "costs": costs}

    lines = screen(BUSY, policies=[policy(1.0, 600.0), policy(2.0, 86_400.0), policy(0.0, 600.0, KNATIVE_POLICY)])
    assert lines[1] == (
        "Over the last day: 3 cold requests instead of 10, 40 pod-minutes less than under Knative's policy, estimated"
    )
    assert lines[2] == (
        "Over the last 10 minutes: 5 cold requests; the adaptive policy would have had 0, and 20 pod-minutes less "
        "than Knative's, estimated"
    )


def test_long_name_is_shortened_in_favour_of_the_numbers() -> None:
    name = "a-service-with-a-name-that-is-as-long-as-names-may-be-and-more-00001"
    long = revision(name, {"running": 2, "target": 7, "ready": 1, "desired": 1, "rps_2xx": 50, "p95_s": 0.25})
    lines = screen(long, BUSY, width=80)
    head = next(line for line in lines if line.startswith("REVISION"))
    row = next(line for line in lines if line.startswith("a-service"))
    assert head.split() == ["REVISION", "STATE", "PODS", "RUNNING", "HELD", "TARGET", "RPS", "5XX", "P95", "MODE"]
    assert row.split()[1:] == ["active", "1", "2.0", "▂", "0.0", "7", "50.0", "-", "250", "ms", "stable"]
    # The revision number at the end of the name is retained.
    assert re.fullmatch(r"a-service.*….*00001", row.split()[0])


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 110, 130, 160])
@pytest.mark.parametrize("name", [LONG, "サービス" * 9 + "-00001", "ok"])
def test_numbers_are_not_truncated_at_any_width(name: str, width: int) -> None:
    lines = screen(
        revision(name, FULL | {"p95_s": 12.345}), BUSY, width=width, nodes={"count": 1, "lines": [node(name)]}
    )
    assert max(map(cell_len, lines)) <= width
    words = " ".join(lines).split()
    place = words.index("10→12")
    numbers = [word for word in words[place : place + 16] if word != "-"]
    assert [number for number in numbers if number in NUMBERS] == NUMBERS
    assert "1.8" in words[place:]
    assert "stable" in words


def test_long_name_on_a_narrow_screen_has_its_own_line() -> None:
    lines = screen(revision(LONG, FULL | {"dormant": 0}), width=60)
    head = next(place for place, line in enumerate(lines) if line.startswith("REVISION"))
    assert lines[head + 1].split() == ["PODS", "RUNNING", "HELD", "TARGET", "RPS", "5XX", "P95", "MODE"]
    assert re.fullmatch(r"a-service-\S+…\S+-00001 active", lines[head + 2].strip())
    assert [len(line.rstrip()) for line in lines[head + 1 : head + 4 : 2]] == [len(lines[head + 1].rstrip())] * 2


def test_two_line_rows_fit_the_screen_height() -> None:
    many = [revision(f"{LONG}-{number:03}", {"ready": 1, "rps_2xx": 12345.6, "p95_s": 1}) for number in range(50)]
    shown = screen(*many, nodes={"count": 1, "lines": [node(LONG)]}, width=52, height=40)
    assert len(shown) <= 40
    assert any(line.startswith("and 4") for line in shown)


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("hello-00001", 11, "hello-00001"),
        ("hello-00001", 9, "hell…0001"),
        ("hello", 1, "…"),
        ("hello", 2, "h…"),
        ("日本語日本語", 7, "日本…語"),
    ],
)
def test_name_is_shortened_in_the_middle_by_display_width(text: str, width: int, expected: str) -> None:
    assert shortened(text, width) == expected


def test_json_record_lists_revisions_in_table_order_with_numbers() -> None:
    revisions = record_of(state_of(ASLEEP, BUSY), namespace="default")["revisions"]
    assert [(entry["name"], entry["shown_state"]) for entry in revisions] == [
        ("busy-00001", "active"),
        ("asleep-00001", "at zero"),
    ]
    assert (revisions[0]["numbers"]["held"], revisions[0]["decision"]["wanted"]) == (5, 8)
    assert record_of(state_of(BUSY), namespace="other")["revisions"] == []
