from pathlib import Path

from serving.net.aio.linefile import LineFile, shift_files


def test_lines_are_written_when_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LineFile(path, bytes_max=10_000) as file:
        for number in range(100):
            file.add(b"line %d" % number)
    assert path.read_bytes().splitlines() == [b"line %d" % number for number in range(100)]
    assert (path.stat().st_mode & 0o777, file.dropped_count) == (0o600, 0)


def test_full_file_is_rotated_and_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(6):
        with LineFile(path, bytes_max=5, files_max=3) as file:
            file.add(b"line %d" % number)
    result = {log_file.name: log_file.read_bytes() for log_file in tmp_path.iterdir()}
    assert result == {"log": b"line 5\n", "log.1": b"line 4\n", "log.2": b"line 3\n"}


def test_failing_disk_drops_lines_without_error(tmp_path: Path) -> None:
    with LineFile(tmp_path / "no" / "log", bytes_max=5) as file:
        file.add(b"one")
    assert file.dropped_count == 1


def test_lines_beyond_queue_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "log", bytes_max=10**9)
    for _ in range(5000):
        file.add(b"x")
    assert file.dropped_count == 5000 - 4096


def test_rotation_to_one_file_deletes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("x")
    shift_files(path, 1)
    assert list(tmp_path.iterdir()) == []
