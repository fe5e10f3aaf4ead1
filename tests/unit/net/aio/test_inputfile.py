import os
import socket
import threading
from pathlib import Path

import pytest

from serving.net.aio import inputfile
from serving.net.aio.inputfile import open_input, read_input_text


def refusal(path: Path) -> str:
    with pytest.raises(OSError, match=r".") as caught:
        read_input_text(path)
    return str(caught.value.strerror)


def test_a_file_is_read_whole_as_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("übung\n")
    assert read_input_text(tmp_path / "file") == "übung\n"


def test_what_would_hang_or_never_end_is_refused_and_leaves_no_descriptor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert refusal(tmp_path / "pipe") == "a named pipe, not a file"
    assert refusal(Path("/dev/zero")) == "a device, not a file"
    assert refusal(tmp_path) == "a folder, not a file"
    assert refusal(tmp_path / "socket") == "No such device or address"
    assert refusal(tmp_path / "missing") == "No such file or directory"
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_null_device_is_empty() -> None:
    assert read_input_text(Path("/dev/null")) == ""


def test_a_large_file_and_other_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputfile, "_BYTES_MAX", 10)
    (tmp_path / "large").write_bytes(bytes(11))
    assert refusal(tmp_path / "large") == "larger than 32 MiB"
    (tmp_path / "other").write_bytes(b"\xff\xfe")
    assert refusal(tmp_path / "other") == "not a text file"


def test_the_output_of_a_command_is_read_to_its_end() -> None:
    mine, its = os.pipe()

    def write() -> None:
        with os.fdopen(its, "wb") as file:
            file.write(b"x" * 200_000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with open_input(Path(f"/dev/fd/{mine}")) as file:
            assert len(file.read()) == 200_000
    finally:
        writer.join()
        os.close(mine)
