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


def test_file_is_read_as_utf8_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("übung\n")
    assert read_input_text(tmp_path / "file") == "übung\n"


def test_non_regular_files_are_rejected_without_descriptor_leak(tmp_path: Path) -> None:
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


def test_null_device_reads_as_empty() -> None:
    assert read_input_text(Path("/dev/null")) == ""


def test_too_large_and_non_text_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputfile, "_BYTES_MAX", 10)
    (tmp_path / "large").write_bytes(bytes(11))
    assert refusal(tmp_path / "large") == "larger than 32 MiB"
    (tmp_path / "other").write_bytes(b"\xff\xfe")
    assert refusal(tmp_path / "other") == "not a text file"


def test_pipe_of_dev_fd_is_read_to_its_end() -> None:
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
