"""Decisions of an autoscaler daemon: streamed, as Events of the API, and recorded for a replay."""

import asyncio
import json

import aiohttp

from serving.core.scaling.scaler.replay import again, read_record
from serving.net.cluster.kinds import EVENT
from serving.net.wire.frames import PodStat, encode_frame
from tests.integration.autoscaler_stage import NAME
from tests.integration.query_token import HEADERS
from tests.integration.test_autoscaler import load, staged


async def test_replayed_recording_yields_the_recorded_decisions() -> None:
    lines: list[bytes] = []
    async with staged(log=lines.append) as stage, stage.as_activator() as activator, stage.as_pod("p") as pod:
        async with asyncio.timeout(60):
            await activator.send(load(30.0))
            await stage.store.scaled(5)
            await stage.store.add_pod("p")
            for concurrency in (20.3, 90.7, 200.1, 8.0):
                await pod.send(encode_frame(PodStat(at_s=0.0, concurrency=concurrency)))
                await asyncio.sleep(1.0)
            await stage.store.remove_pod("p")
            await asyncio.sleep(0.3)
    records = [read_record(line) for line in lines]
    assert len({record.entry.outcome.gate.wanted for record in records}) > 3
    assert any(record.windows and record.windows.stable.values for record in records)
    for record in records:
        assert again(record) == record.entry.outcome


async def test_decisions_and_samples_are_streamed_as_events() -> None:
    async with staged() as stage, stage.as_activator() as activator, aiohttp.ClientSession() as session:
        url = f"http://{stage.address}/decisions?follow&samples&namespace=default"
        async with asyncio.timeout(60), session.get(url, headers=HEADERS) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            await activator.send(load(100.0))
            entry: dict[str, list[dict[str, object]]] = {"decision": [], "sample": []}
            event = ""
            async for line in response.content:
                name, _, value = line.decode().strip().partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    entry[event].append(json.loads(value))
                if entry["decision"] and any(sample["present_scale"] == 15 for sample in entry["sample"]):
                    break
        sentences = [str(decision["sentence"]) for decision in entry["decision"]]
        assert any(sentence.startswith("0 → 15: panic; 100.0 in flight") for sentence in sentences)
        assert {sample["held"] for sample in entry["sample"]} >= {100.0}


async def test_scale_change_creates_event_of_revision() -> None:
    async with staged() as stage, stage.as_activator() as activator:
        await activator.send(load(100.0))
        async with asyncio.timeout(60):
            while not (items := (await stage.store.cluster.list(EVENT, "default")).items):  # noqa: ASYNC110 - as kubectl
                await asyncio.sleep(0.01)
        assert items[0]["reason"] == "Scaled"
        assert items[0]["involvedObject"]["name"] == NAME
        assert items[0]["message"].startswith("0 → 15: panic")
