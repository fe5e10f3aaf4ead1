"""Standby processes, which the template forks ahead: pods start from them, but do not depend on them."""

import contextlib
import os
import signal
from pathlib import Path

from serving.home.processes.process_lifetime import STANDBY_NAME, children_of
from tests.eventually import until
from tests.integration.local_stage import Template, controlled, manifest, template_process

COUNT = 4


def standbys_of(template: Template) -> set[int]:
    """The PIDs of the standby processes."""
    results = set()
    for pid in children_of(template.supervisor.pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == STANDBY_NAME:
                results.add(pid)
    return results


async def until_full(template: Template) -> set[int]:
    await until(lambda: len(standbys_of(template)) == COUNT)
    return standbys_of(template)


async def test_pod_uses_standby_processes(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            standbys = await until_full(template)
            await machine.start(manifest())
            _, body = await machine.get(await machine.ready())
            app = int(body.rsplit(maxsplit=1)[-1])
            assert app in standbys
            assert app not in await until_full(template)


async def test_pod_starts_without_standby_processes(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            for pid in await until_full(template):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not standbys_of(template))
            await machine.start(manifest())
            assert (await machine.get(await machine.ready()))[0] == 200


async def test_standby_processes_end_with_their_template(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        standbys = await until_full(template)
        template.kill()
        await until(lambda: not standbys & standbys_of(template))
