"""Fixtures of several test files."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.integration.kubectl import KUBECTLS, Kubectl, serve_kubectl
from tests.integration.local_stage import Machine, Template, controlled, template_process


@pytest.fixture(params=KUBECTLS or [""], ids=lambda path: Path(path).name)
async def kubectl(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """A kubectl with its own server over a memory store."""
    async with aclosing(serve_kubectl(request.param, tmp_path)) as served:
        async for client in served:
            yield client


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """A template process that the tests of a file share."""
    with template_process(tmp_path_factory.mktemp("machine") / "state") as process:
        yield process


@pytest.fixture
async def machine(template: Template) -> AsyncIterator[Machine]:
    """A control process with the template; its pods are removed after the test."""
    async with controlled(template.state) as control:
        yield control
        await control.clear()
