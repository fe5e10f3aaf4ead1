"""The template does shared work once, before it forks."""

import typing

import pytest

from serving.home.processes.spawn import warm_up
from serving.queueproxy.podspec import spec_from_environment

ENVIRONMENT = {
    "SERVING_POD_NAMESPACE": "default",
    "SERVING_POD_REVISION": "hello-00001",
    "SERVING_POD_NAME": "hello-00001-x",
    "SERVING_POD_APP": "127.0.0.1:4000",
}


def test_after_the_warm_up_a_queue_proxys_environment_is_read_without_resolving_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warm_up()

    def resolved(*_: object, **__: object) -> typing.NoReturn:
        raise AssertionError("types were resolved again")

    monkeypatch.setattr(typing, "get_type_hints", resolved)
    assert spec_from_environment(ENVIRONMENT).pod == "hello-00001-x"
