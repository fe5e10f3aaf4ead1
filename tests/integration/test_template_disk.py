"""The disk of the state folder is full: the template keeps its pods, and what it cannot write ends no daemon."""

import contextlib

import pytest

from bench.parts.faulty_machine import fill, small_disk
from serving.home.controllers.workloads import is_ready
from serving.net.cluster.kinds import POD
from tests.integration.local_stage import controlled, manifest, template_process

DISK_MIB = 40


async def test_a_full_disk_does_not_end_the_template() -> None:
    """Its notes and its log are on the same disk."""
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(small_disk(mib=DISK_MIB))
        if disk is None:
            pytest.skip("only root can mount a file system to fill")
        template = stack.enter_context(template_process(disk / "state"))
        async with controlled(template.state) as machine:
            await machine.start(manifest())
            await machine.ready()
            before = template.pid
            with fill(disk):
                # It drains, of which the template takes a note.
                await machine.cluster.delete(POD, "default", "p")
                await machine.until_gone()
                # The next one starts, or waits for room, and says so.
                await machine.start(manifest("q"))
                await machine.until(lambda pod: is_ready(pod) or "No space left" in str(pod.get("status")), "q")
                assert template.pid == before
            await machine.ready("q")
            assert template.pid == before
