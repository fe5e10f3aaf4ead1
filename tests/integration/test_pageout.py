"""Page-out of the memory of a frozen app, measured by the kernel, on real processes.

Anonymous memory needs swap, which a test does not create. The same call pages out file pages without swap.
"""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.core.settings.queueproxy import QueueProxySettings
from serving.queueproxy.io.pageout import PageOuts, has_swap, mapped_ranges, page_out, pss_bytes
from serving.queueproxy.podspec import PodSpec
from tests.eventually import until
from tests.integration.test_freezers import running

HEADER = "Filename\tType\tSize\tUsed\tPriority\n"
ZRAM = f"{HEADER}/dev/zram0 partition 1048572 0 100\n"
_MIB = 2**20
# Maps a file, reads all of it and prints a sum; then reads all of it again for each line of input.
_READER = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(sum(mapped[::4096]), flush=True)
for _ in sys.stdin:
    print(sum(mapped[::4096]), flush=True)
"""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has mapped and read 32 MiB of a file on disk."""
    if subprocess.check_output(["stat", "-f", "-c", "%T", tmp_path], text=True) == "tmpfs\n":
        pytest.skip("files of this folder are memory")
    path = tmp_path / "data"
    with path.open("wb") as file:
        file.write(b"\1" * (32 * _MIB))
        file.flush()
        os.fsync(file.fileno())
    command = [sys.executable, "-c", _READER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == 32 * _MIB // mmap.PAGESIZE
    yield process
    process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="advising another process needs CAP_SYS_NICE")
def test_page_out_reduces_resident_memory_until_it_is_read_again(reader: "subprocess.Popen[str]") -> None:
    new_page_out = page_out([reader.pid])
    assert new_page_out.before_bytes > 32 * _MIB
    assert new_page_out.before_bytes - new_page_out.after_bytes > 16 * _MIB
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write("\n")
    reader.stdin.flush()
    assert int(reader.stdout.readline()) == 32 * _MIB // mmap.PAGESIZE
    assert pss_bytes(reader.pid) > 32 * _MIB


async def test_memory_of_frozen_app_is_paged_out_after_delay(tmp_path: Path) -> None:
    (tmp_path / "swaps").write_text(ZRAM)
    async with running(tmp_path, "sleep", "1000") as app:
        settings = QueueProxySettings(dormant_page_out_s=0.1)
        spec = PodSpec(
            namespace="n", revision="r", pod="p", app=("127.0.0.1", 1), processes=app.prefix, settings=settings
        )
        page_outs = PageOuts(spec, swaps=str(tmp_path / "swaps"))
        page_outs.expect()
        before, _ = await until(page_outs.page)
        assert int(before.removeprefix("queueproxy_dormant_memory_before_bytes ")) > 0


def test_page_out_of_ended_process_reports_zero_bytes() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert page_out([ended.pid]).before_bytes == 0


def test_page_out_works_without_a_reclaimable_cgroup(reader: "subprocess.Popen[str]", tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("advising another process needs CAP_SYS_NICE")
    new_page_out = page_out([reader.pid], str(tmp_path / "missing"))
    assert new_page_out.after_bytes < new_page_out.before_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [(HEADER, False), (ZRAM, True)],
)
def test_zram_counts_as_swap(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "swaps").write_text(text)
    assert has_swap(str(tmp_path / "swaps")) is expected
    assert not has_swap(str(tmp_path / "missing"))


def test_kernel_mappings_are_skipped() -> None:
    lines = ["7f0000000000-7f0000002000 rw-p 00000000 00:00 0 \n", "7ffd1000-7ffd2000 r-xp 00000000 00:00 0 [vdso]\n"]
    assert list(mapped_ranges(lines)) == [(0x7F0000000000, 0x7F0000002000)]
