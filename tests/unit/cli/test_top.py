from typing import Any

from rich.console import Console

from serving.cli.top import screen_of
from serving.dashboard.history import COLUMNS


def revision(name: str, row: dict[str, float], **view: str) -> tuple[dict[str, Any], list[float | None]]:
    shown = {"name": name, "namespace": "default", "ready": "True", "state": "Active"} | view
    return {"kind": "revision", "key": f"default/{name}", "view": shown}, [row.get(one) for one in COLUMNS]


def screen(*revisions: tuple[dict[str, Any], list[float | None]], width: int = 160) -> list[str]:
    state = {
        "columns": COLUMNS,
        "objects": [one for one, _ in revisions] + [{"kind": "service", "key": "default/x", "view": {}}],
        "rows": {one["key"]: row for one, row in revisions},
        "decisions": {"default/busy-00001": {"at_s": 0.0, "sentence": "3 → 8: panic"}},
    }
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as caught:
        console.print(screen_of(state, width=width))
    return caught.get().splitlines()


BUSY = revision(
    "busy-00001",
    {"running": 20, "held": 5, "target": 21, "ready": 3, "desired": 8, "is_panic": 1, "rps_2xx": 50, "rps_5xx": 2, "p95_s": 0.25},
)  # fmt: skip
ASLEEP = revision("asleep-00001", {"ready": 0}, state="Reserve")
BROKEN = revision("broken-00001", {"ready": 0}, ready="False")
STARTING = revision("new-00001", {"ready": 0})


def test_the_busiest_comes_first_with_its_numbers_and_why() -> None:
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


def test_a_narrow_screen_has_the_why_below() -> None:
    lines = screen(BUSY, ASLEEP, width=80)
    assert lines[-2].startswith("busy-00001 ")
    assert lines[-2].rstrip().endswith("3 → 8: panic")
    assert max(len(line) for line in lines) <= 80
