"""A request and a pod's start call the functions listed in docs/architecture.md, as far as this process runs them."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from serving.home.state import StateFolder
from serving.net.cluster.kinds import POD
from tests.integration.activator_stage import send_request, staged
from tests.integration.local_stage import controlled, manifest, template_process
from tests.tidy.sources import ROOT
from tests.tidy.test_docs import ways

Step = tuple[str, str]

WAYS = ways((ROOT / "docs" / "architecture.md").read_text())


@contextlib.contextmanager
def called_steps(steps: list[Step]) -> Iterator[list[Step]]:
    """The documented steps that this thread calls, in the order of their first calls."""
    result: list[Step] = []
    wanted = {(str(ROOT / "serving" / file), function): (file, function) for file, function in steps}

    def profile(frame: FrameType, event: str, argument: Any) -> None:  # noqa: ANN401, ARG001 - as Python calls it
        step = wanted.get((frame.f_code.co_filename, frame.f_code.co_qualname)) if event == "call" else None
        if step is not None and step not in result:
            result.append(step)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield result
    finally:
        sys.setprofile(before)


async def test_request_follows_documented_call_path() -> None:
    documented = [step for step in WAYS["a request"] if not step[0].startswith("queueproxy/")]
    async with staged() as stage:
        await stage.service()
        await stage.pod("one")
        with called_steps(documented) as steps:
            assert (await send_request(stage.public)).status == 200
    assert steps == documented


async def test_pod_start_and_end_follow_documented_call_path(tmp_path: Path) -> None:
    elsewhere = ("queueproxy/", "home/processes/template", "home/processes/spawn")
    documented = [step for step in WAYS["a pod's start"] if not step[0].startswith(elsewhere)]
    with template_process(tmp_path):
        async with controlled(StateFolder(tmp_path)) as machine:
            with called_steps(documented) as steps:
                await machine.start(manifest())
                await machine.ready()
                await machine.cluster.delete(POD, "default", "p")
                await machine.until_gone()
    assert steps == documented
