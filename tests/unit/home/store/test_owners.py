"""Uids of new objects: derived objects keep theirs from run to run."""

import random
from uuid import UUID

import pytest

from serving.core.model.objects import Object
from serving.home.store.owners import Uids
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, Kind

OWNER = "0b1a4c1e-8a53-4a0b-9d0a-6f3a5f0d7c55"


def made(name: str = "d", owner: str = OWNER, **metadata: object) -> Object:
    references = [{"uid": "another"}, {"uid": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name, "namespace": "default", "ownerReferences": references, **metadata}}


def new_uids(seed: int = 0) -> Uids:
    return Uids(random.Random(seed))


def test_a_derived_object_has_the_same_uid_in_each_run() -> None:
    uid = new_uids(1).new(DEPLOYMENT, made())
    assert uid == new_uids(2).new(DEPLOYMENT, made())
    assert UUID(uid).version == 5


def test_an_object_of_the_system_needs_no_owner() -> None:
    body = made(owner="", namespace="knative-serving")
    assert new_uids(1).new(DEPLOYMENT, body) == new_uids(2).new(DEPLOYMENT, body)


@pytest.mark.parametrize("other", [made("e"), made(owner="x"), made(namespace="other")])
def test_another_object_has_another_uid(other: Object) -> None:
    assert new_uids().new(DEPLOYMENT, other) != new_uids().new(DEPLOYMENT, made())


def test_an_object_that_is_created_again_in_one_run_is_another_one() -> None:
    uids = new_uids()
    first = uids.new(DEPLOYMENT, made())
    uids.retire(DEPLOYMENT, first)
    second = uids.new(DEPLOYMENT, made())
    assert first != second
    assert UUID(second).version == 4


@pytest.mark.parametrize(
    ("kind", "body"), [(CONFIG_MAP, made()), (DEPLOYMENT, made(owner="")), (DEPLOYMENT, made(generateName="d"))]
)
def test_other_objects_get_random_uids(kind: Kind, body: Object) -> None:
    assert UUID(new_uids(1).new(kind, body)).version == 4
    assert new_uids(1).new(kind, body) != new_uids(2).new(kind, body)


def test_the_objects_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.home.store.owners._RETIRED_MAX", 1)
    uids = new_uids()
    first = uids.new(DEPLOYMENT, made())
    uids.retire(DEPLOYMENT, first)
    uids.retire(DEPLOYMENT, "another")
    assert uids.new(DEPLOYMENT, made()) == first
