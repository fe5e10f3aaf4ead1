"""A real server has nothing of the suite after it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.tools.cli.client.api import ApiClient
from tests.cluster_e2e.server import SPACE, VARIABLE, all_objects, is_real, removed_at_end


@pytest.fixture(scope="session", autouse=True)
def _as_before() -> Iterator[None]:
    if not is_real():
        yield
        return
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    with removed_at_end(ApiClient(kubeconfig=Path(os.environ[VARIABLE])), [*all_objects(), space]):
        yield
