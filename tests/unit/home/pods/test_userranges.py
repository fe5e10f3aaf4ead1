from pathlib import Path

import pytest

from serving.home.pods.userranges import DEFAULT_RANGE, IdRange, free_firsts, subordinate_range, used_ranges

TEN = IdRange(first=1_000_000, count=10 * 65_536 + 5)


def files(tmp_path: Path, *texts: str) -> list[Path]:
    results = []
    for number, text in enumerate(texts):
        path = tmp_path / str(number)
        path.write_text(text)
        results.append(path)
    return results


def test_subordinate_range_of_serving_is_used(tmp_path: Path) -> None:
    line = "joe:100000:65536\nserving:1000000:655360\n"
    assert subordinate_range(files(tmp_path, line, line)) == IdRange(first=1_000_000, count=655_360)


@pytest.mark.parametrize(
    "lines",
    [
        "serving:1000:655360",  # Users of the machine.
        "serving:1000000:65535",  # Too few for a pod.
        "serving:4294900000:655360",  # There are no such users.
        "serving:many:655360",
        "serving",
        "kubelet:1000000:655360",
        "",
    ],
)
def test_invalid_subordinate_range_falls_back_to_default(tmp_path: Path, lines: str) -> None:
    assert subordinate_range(files(tmp_path, lines, lines)) == DEFAULT_RANGE


def test_differing_user_and_group_ranges_fall_back_to_default(tmp_path: Path) -> None:
    named = files(tmp_path, "serving:1000000:655360", "serving:2000000:655360")
    assert subordinate_range(named) == DEFAULT_RANGE
    assert subordinate_range([tmp_path / "none", *named]) == DEFAULT_RANGE


def test_used_ranges_are_skipped_with_wrap_around() -> None:
    assert TEN.pod_count == 10
    assert list(free_firsts(TEN, (), start=8))[:3] == [1_000_000 + number * 65_536 for number in (8, 9, 0)]
    # A used range of another size excludes each range that it overlaps.
    used = {(1_000_000, 65_536), (1_000_000 + 3 * 65_536 - 1, 2)}
    numbers = [(first - 1_000_000) // 65_536 for first in free_firsts(TEN, used, start=0)]
    assert numbers == [1, 4, 5, 6, 7, 8, 9]
    assert list(free_firsts(TEN, {(0, 2**31)}, start=0)) == []


def test_used_ranges_are_those_of_user_namespaces(tmp_path: Path) -> None:
    for name, text in (
        ("1", "         0          0 4294967295\n"),
        ("20", "0 100000 65536\n65536 5 1\n"),
        ("self", "0 1 1\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "uid_map").write_text(text)
    (tmp_path / "30").mkdir()
    assert used_ranges(tmp_path) == {(100_000, 65_536), (5, 1)}
