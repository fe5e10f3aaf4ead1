"""Settings that follow ConfigMaps, over the memory store on a virtual clock."""

import asyncio
import contextlib
from typing import Any

import pytest

from serving.core.model.errors import ClusterError, Forbidden, Unavailable
from serving.core.model.objects import Object
from serving.core.settings.daemons import AUTOSCALER, DAEMONS
from serving.core.settings.live import AppliedConfigMap, LiveSettings
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.configmaps import followed
from serving.net.cluster.kinds import CONFIG_MAP
from serving.net.cluster.port import Listing, Selection
from tests.virtual_time import pass_s, run_virtually

SPACE = "knative-serving"
NAME = "config-autoscaler"


def config(**environment: str) -> LiveSettings[Any]:
    return LiveSettings(AUTOSCALER, registry=DAEMONS, environment=environment)


def body(**data: str) -> Object:
    return {"metadata": {"name": NAME, "namespace": SPACE}, "data": {k.replace("_", "-"): v for k, v in data.items()}}


async def seen() -> None:
    """Wait until all changes so far are reported."""
    await pass_s(0.001)


def test_settings_follow_config_map_from_start_through_deletion() -> None:
    async def check() -> None:
        cluster, own, on_applied = MemoryCluster(), config(), []
        await cluster.create(CONFIG_MAP, body(stable_window="30s", stats_address="127.0.0.1:1"))
        async with followed(cluster, SPACE, [own]) as watch:
            assert (own.settings.stable_window_s, own.settings.stats_address) == (30.0, "127.0.0.1:1")
            with watch.applied_by(lambda: on_applied.append(own.settings.stable_window_s)):
                await cluster.patch(CONFIG_MAP, SPACE, NAME, patch={"data": {"stable-window": "40s"}})
                await cluster.patch(CONFIG_MAP, SPACE, NAME, patch={"data": {"stats-address": "127.0.0.1:2"}})
                await seen()
                assert own.settings.stats_address == "127.0.0.1:1"
                await cluster.delete(CONFIG_MAP, SPACE, NAME)
                await seen()
            await cluster.create(CONFIG_MAP, body(stable_window="50s"))
            await seen()
        assert on_applied == [40.0, 60.0]
        await cluster.close()

    run_virtually(check())


def test_invalid_config_map_is_reported_and_remembered_until_corrected() -> None:
    async def check() -> None:
        cluster, own, reported = MemoryCluster(), config(), list[tuple[AppliedConfigMap, Object]]()
        async with followed(cluster, SPACE, [own]) as watch, contextlib.AsyncExitStack() as stack:
            stack.enter_context(watch.reported_to(lambda *arguments: reported.append(arguments)))
            stack.enter_context(watch.applied_by(reported.clear))
            await cluster.create(CONFIG_MAP, body(stable_window="never"))
            await seen()
            ((applied, resource),) = reported
            assert applied.problems[0].where == f"ConfigMap {NAME}"
            assert resource["metadata"]["name"] == NAME
            assert len(watch.refused) == 1
            await cluster.patch(CONFIG_MAP, SPACE, NAME, patch={"data": {"stable-window": "20s"}})
            await seen()
            assert watch.refused == {}
            assert reported == []
        await cluster.close()

    run_virtually(check())


class UnlistableCluster(MemoryCluster):
    """A memory store whose lists fail while ``is_failing``."""

    is_failing = True

    def __init__(self, error: ClusterError) -> None:
        super().__init__()
        self.error = error

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        if self.is_failing:
            raise self.error
        return await super().list_selection(selection, page_size=page_size, page=page)


@pytest.mark.parametrize(
    ("error", "wait_s"), [(Unavailable("it does not answer"), 30.0), (Forbidden("it may not"), 5.0)]
)
def test_daemon_starts_without_config_maps_after_timeout_and_applies_them_later(
    error: ClusterError, wait_s: float
) -> None:
    async def check() -> None:
        cluster, own = UnlistableCluster(error), config(SERVING_AUTOSCALER_MAX_SCALE="7")
        await cluster.create(CONFIG_MAP, body(stable_window="30s"))
        began_s, changed = now_s(), asyncio.Event()
        async with followed(cluster, SPACE, [own]) as watch:
            assert now_s() - began_s == wait_s
            assert (own.settings.stable_window_s, own.settings.max_scale) == (60.0, 7)
            cluster.is_failing = False
            with watch.applied_by(changed.set):
                await changed.wait()
            assert own.settings.stable_window_s == 30.0
        await cluster.close()

    run_virtually(check())


def test_variable_of_removed_setting_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        cluster = MemoryCluster()
        async with followed(cluster, SPACE, [config(SERVING_AUTOSCALER_DECISIONS_KEPT="9")]):
            pass
        await cluster.close()

    run_virtually(check())
    (record,) = [record for record in caplog.records if record.message == "settings.removed"]
    assert "SERVING_AUTOSCALER_DECISIONS_KEPT" in getattr(record, "problems", [""])[0]
