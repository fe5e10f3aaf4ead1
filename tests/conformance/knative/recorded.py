"""Requests of Knative's own tests and clients with their responses, as data; and their runner.

A scenario is a YAML file: a title, the reason why it matters, and steps. A step is a request (``send: METHOD PATH``,
with ``body``, or ``base64`` and ``type`` for other media) and what the answer must have: ``status``, ``expect`` (a
subset of its body), ``text`` (part of its body). With ``until`` a GET is repeated until the body has that subset.
``${name}`` stands for a value that an earlier step has kept (``keep: {name: path/to/value}``).
``activators`` is the number of activators in the cluster. They have addresses and answer no request.
"""

import asyncio
import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

DATA = Path(__file__).with_name("data")
_PATIENCE_S = 60.0
_PAUSE_S = 0.02
_PLACE = re.compile(r"\$\{(\w+)\}")


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request and its response."""

    send: str
    body: Any = None
    base64: str = ""
    type: str = "application/json"
    status: int = 0
    expect: Any = None
    text: str = ""
    until: Any = None
    keep: dict[str, str] = {}


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that belong together, in their order."""

    title: str
    why: str
    steps: list[Step]
    activators: int = 0


def read_scenario(path: Path) -> Scenario:
    """A scenario from its file. Raises ``msgspec.ValidationError``."""
    return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Scenario)


def missing(wanted: object, value: object, path: str = "") -> str:
    """The first place at which ``found`` lacks something wanted; "" if it has everything.

    Of an object only the keys that are wanted count, null means that there is none; a list has as many items.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(value, Mapping):
            return f"{path}: {value!r} is no object"
        return next((text for key in wanted if (text := missing(wanted[key], value.get(key), f"{path}.{key}"))), "")
    if isinstance(wanted, list):
        if not isinstance(value, list) or len(value) != len(wanted):
            return f"{path}: {value!r}, not {len(wanted)} items"
        items = enumerate(zip(wanted, value, strict=True))
        return next(
            (message for at, (first, other) in items if (message := missing(first, other, f"{path}[{at}]"))), ""
        )
    return "" if wanted == value else f"{path}: {value!r}, not {wanted!r}"


async def play(scenario: Scenario, url: str, token: str) -> None:
    """Send every request; ``AssertionError`` at the first response that differs from the record."""
    result: dict[str, str] = {}
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for number, step in enumerate(scenario.steps, 1):
            raw = msgspec.json.decode(_filled(msgspec.json.encode(step).decode(), result), type=Step)
            try:
                await _play(raw, session, url, result)
            except AssertionError as error:
                raise AssertionError(f"{scenario.title}: step {number}, {step.send}: {error}") from error


async def _play(step: Step, session: aiohttp.ClientSession, url: str, fields: dict[str, str]) -> None:
    message, status, text = "no answer", 0, ""
    result: Any = {}
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while message:
                status, text = await _response(step, session, url)
                result = json.loads(text) if text.startswith("{") else {}
                message = "" if step.until is None else missing(step.until, result)
                await asyncio.sleep(_PAUSE_S if message else 0)
    except TimeoutError:
        raise AssertionError(message) from None
    assert status == (step.status or status), f"{status}, not {step.status}: {text[:400]}"
    assert step.status or status < 400, f"{status}: {text[:400]}"
    message = missing(step.expect, result) if step.expect is not None else ""
    assert not message, message
    assert step.text in text, f"{step.text!r} is not in {text[:400]}"
    for name, path in step.keep.items():
        value: Any = result
        for key in path.split("/"):
            value = value[key.replace("~1", "/")]
        fields[name] = str(value)


async def _response(step: Step, session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    method, path = step.send.split(" ", 1)
    data = base64.b64decode(step.base64) if step.base64 else None
    if step.body is not None:
        data = json.dumps(step.body).encode()
    headers = {"Content-Type": step.type} if data is not None else {}
    async with session.request(method, url + path, data=data, headers=headers) as answer:
        return answer.status, await answer.text()


def _filled(text: str, fields: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda match: fields[match[1]], text)
