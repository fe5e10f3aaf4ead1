from pathlib import Path

import pytest

from serving.home.kubelet.container import RestartSettings
from serving.home.kubelet.replacements import ReplacementPauses, lineage_of, read_pauses, write_pauses

KUBELET = RestartSettings(pause_first_s=10, pause_max_s=300, sound_s=600)
AHEAD_S = 1_700_000_000.0


def lost(count: int) -> ReplacementPauses:
    """Pauses after ``count`` consecutive evictions, the last at 1000 s."""
    replacement_pauses = ReplacementPauses(KUBELET)
    for number in range(count):
        at_s = 1000.0 - 50 * (count - 1 - number)
        replacement_pauses.evicted("d", began_s=at_s - 1, at_s=at_s)
    return replacement_pauses


def test_lineage_is_the_revision_or_the_owner() -> None:
    labels = {"serving.knative.dev/revisionUID": "r"}
    metadata = {"name": "p", "namespace": "n", "ownerReferences": [{"uid": "d"}]}
    assert lineage_of({"metadata": {**metadata, "labels": labels}}) == "r"
    assert lineage_of({"metadata": metadata}) == "d"


def test_replacement_pauses_continue_in_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "evictions.json"
    write_pauses(lost(3), path, now_s=1000.0, wall_s=1000.0 + AHEAD_S)
    again = ReplacementPauses(KUBELET)
    # Five seconds later, and 5 s after the machine's start.
    read_pauses(again, path, now_s=5.0, wall_s=1005.0 + AHEAD_S)
    assert again.due_s("d") == pytest.approx(20.0)
    again.evicted("d", began_s=20.0, at_s=21.0)
    assert again.due_s("d") == pytest.approx(21.0 + 40)


def test_backward_clock_limits_the_pause_to_its_maximum(tmp_path: Path) -> None:
    path = tmp_path / "evictions.json"
    write_pauses(lost(3), path, now_s=1000.0, wall_s=1000.0 + AHEAD_S)
    again = ReplacementPauses(KUBELET)
    read_pauses(again, path, now_s=5.0, wall_s=0.0)
    assert again.due_s("d") == 5 + 300
    # The count of evictions continues.
    again.evicted("d", began_s=305.0, at_s=306.0)
    assert again.due_s("d") == 306 + 40


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"d": 5}', b'{"d": {"end_count": 1}}', b"\xff", b'{"\xff": 5}', b'{"d": ' * 5000]
)
def test_missing_or_damaged_pauses_file_is_ignored(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "evictions.json"
    replacement_pauses = ReplacementPauses(KUBELET)
    read_pauses(replacement_pauses, path, now_s=0.0, wall_s=0.0)
    path.write_bytes(text)
    read_pauses(replacement_pauses, path, now_s=0.0, wall_s=0.0)
    assert replacement_pauses.due_s("d") == 0


def test_unwritable_pauses_file_does_not_change_pauses(tmp_path: Path) -> None:
    replacement_pauses = lost(3)
    write_pauses(replacement_pauses, tmp_path / "none" / "evictions.json", now_s=1000.0, wall_s=AHEAD_S)
    assert replacement_pauses.due_s("d") == 1020


def test_replacement_pauses_start_at_second_eviction_and_double() -> None:
    replacement_pauses, at_s, pauses = ReplacementPauses(KUBELET), 1000.0, []
    for _ in range(8):
        began_s, at_s = at_s, at_s + 5
        replacement_pauses.evicted("d", began_s=began_s, at_s=at_s)
        pauses.append(replacement_pauses.due_s("d") - at_s)
        at_s = replacement_pauses.due_s("d")
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]
    assert replacement_pauses.due_s("other") == 0


def test_simultaneous_evictions_count_once() -> None:
    replacement_pauses = ReplacementPauses(KUBELET)
    for at_s in (1005.0, 1006.0, 1007.0):
        replacement_pauses.evicted("d", began_s=1000.0, at_s=at_s)
    assert replacement_pauses.due_s("d") == 1005


def test_replacement_pause_is_reset_after_a_quiet_time() -> None:
    replacement_pauses = ReplacementPauses(KUBELET)
    for at_s in (5.0, 10.0):
        replacement_pauses.evicted("d", began_s=at_s - 5, at_s=at_s)
    assert replacement_pauses.due_s("d") == 20
    replacement_pauses.evicted("other", began_s=0.0, at_s=2000.0)
    assert replacement_pauses.due_s("d") == 0
