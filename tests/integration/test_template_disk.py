"""A full disk of the state folder: the template and its pods continue."""

import contextlib

import pytest

from bench.parts.faulty_machine import fill, small_disk
from serving.home.controllers.workloads import is_ready
from serving.net.cluster.kinds import POD
from tests.integration.local_stage import controlled, manifest, template_process

DISK_MIB = 40


async def test_template_survives_a_full_disk() -> None:
    """The template's records and its log are on the same disk."""
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
                # The pod drains, which the template records on the disk.
                await machine.cluster.delete(POD, "default", "p")
                await machine.until_gone()
                # The next pod starts, or reports that it waits for disk space.
                await machine.start(manifest("q"))
                await machine.until(lambda pod: is_ready(pod) or "No space left" in str(pod.get("status")), "q")
                assert template.pid == before
            await machine.ready("q")
            assert template.pid == before
