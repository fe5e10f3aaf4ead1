"""Fixtures of several files."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.integration.kubectl import KUBECTLS, Kubectl, serve_kubectl


@pytest.fixture(params=KUBECTLS or [""], ids=lambda path: Path(path).name)
async def kubectl(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """A kubectl with its own server over a memory store."""
    async with aclosing(serve_kubectl(request.param, tmp_path)) as served:
        async for one in served:
            yield one
