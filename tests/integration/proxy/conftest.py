"""Tests of the data path run on uvloop, like the data path."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.integration.proxy.pods import PODS, PodMaker


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    del config, item
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(params=list(PODS))
def pod(request: pytest.FixtureRequest) -> PodMaker:
    """A maker of pods, for each kind of queue-proxy."""
    return PODS[request.param]
