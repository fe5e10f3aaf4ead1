"""Detection of the container engine, by running containers."""

import base64
import itertools
from pathlib import Path

import pytest

from serving.home.containers import engine
from serving.home.containers.engine import find_engine
from tests.integration.image_stage import needs_containers

pytestmark = needs_containers("crun")


def test_crun_compiles_the_default_profile_once(tmp_path: Path) -> None:
    container_engine = find_engine("crun", tmp_path)
    compiled = base64.b64decode(container_engine.seccomp_filter)
    # Instructions of 8 bytes, of which a few hundred calls need more than a hundred (seccomp(2)).
    assert (len(compiled) % 8, len(compiled) > 800) == (0, True)
    assert not list(tmp_path.iterdir())


def test_seccomp_filter_is_unused_if_crun_compiles_it_differently_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = engine._compiled
    counts = itertools.count()
    monkeypatch.setattr(engine, "_compiled", lambda record: compiled(record) + "AAAA" * next(counts))
    container_engine = find_engine("crun", tmp_path)
    assert container_engine.runtime.endswith("crun")
    assert not container_engine.seccomp_filter
