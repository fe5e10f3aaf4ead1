"""Pods as containers of images: started, answered through their queue-proxy, limited, probed, taken over, removed."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from serving.cluster.kinds import POD
from serving.cluster.port import Object
from serving.local.containers.host import container_host
from serving.local.containers.podbox import ContainerHost
from serving.local.workloads import is_ready
from tests.integration.image_stage import app_image, needs_containers
from tests.integration.local_stage import Machine, controlled, manifest, status_of, template_process

pytestmark = [needs_containers()]
IMAGE = "test.local/web:1"


def host_of(state: Path) -> ContainerHost:
    host, reason = container_host(state)
    assert host is not None, reason
    return host


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    host = host_of(tmp_path / "state")
    app_image(tmp_path / "image.tar")
    host.images.store.add(tmp_path / "image.tar", is_kept=True)
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state, containers=host) as made:
            yield made
            for pod in (await made.cluster.list(POD)).items:
                await made.cluster.delete(POD, "default", pod["metadata"]["name"], grace_s=0)
                await made.until_gone(pod["metadata"]["name"])


def boxed(**container: Any) -> Object:  # noqa: ANN401 - fields of the API
    made = manifest()
    made["metadata"]["annotations"] = {}
    made["spec"]["containers"] = [{"name": "user-container", "image": IMAGE, **container}]
    return made


async def test_an_image_answers_with_its_own_environment_at_the_default_port(machine: Machine) -> None:
    await machine.start(boxed())
    pod = await machine.ready()
    status, page = await machine.get(pod, "/me")
    assert (status, page.strip()) == (200, "TARGET=image PORT=8080 user=0:0 host=p pid=1 home=/root")
    assert "started" in machine.log("p")


async def test_two_pods_have_the_same_port(machine: Machine) -> None:
    for name in ("p", "q"):
        made = boxed()
        made["metadata"]["name"] = name
        await machine.start(made)
    pages = [(await machine.get(await machine.ready(name), "/me"))[1] for name in ("p", "q")]
    assert ["host=p" in pages[0], "host=q" in pages[1]] == [True, True]


async def test_a_container_that_ends_starts_again_with_the_files_of_its_image(machine: Machine) -> None:
    await machine.start(boxed(command=["/bin/sh", "-c", "test -e /left && echo dirty; touch /left; sleep 0.2; exit 3"]))
    pod = await machine.until(lambda one: status_of(one).get("restartCount", 0) >= 2)
    assert status_of(pod)["lastState"]["terminated"]["exitCode"] == 3
    assert "dirty" not in machine.log("p")


async def test_what_a_container_cannot_execute_is_in_its_status(machine: Machine) -> None:
    await machine.start(boxed(command=["/no/such"]))
    pod = await machine.until(lambda one: "/no/such" in str(status_of(one).get("state")))
    assert not is_ready(pod)


async def test_an_image_that_is_not_here_is_said(machine: Machine) -> None:
    await machine.start(boxed(image="test.local/none:1"))
    pod = await machine.until(
        lambda one: "waiting" in status_of(one).get("state", {}) and "none:1" in str(one["status"])
    )
    assert status_of(pod)["state"]["waiting"]["reason"] == "ErrImagePull"


async def test_a_container_goes_on_under_the_next_control_process(tmp_path: Path) -> None:
    host = host_of(tmp_path / "state")
    app_image(tmp_path / "image.tar")
    host.images.store.add(tmp_path / "image.tar", is_kept=True)
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state, containers=host) as machine:
            await machine.start(boxed())
            pod = await machine.ready()
            process = next(iter(machine.kubelet._running.values())).sessions["user-container"]
        async with controlled(template.state, containers=host) as machine:
            again = await machine.ready()
            assert next(iter(machine.kubelet._running.values())).sessions["user-container"] == process
            assert (await machine.get(again, "/me"))[0] == 200
            assert again["status"]["podIP"] == pod["status"]["podIP"]
            await machine.cluster.delete(POD, "default", "p")
            await machine.until_gone()
        assert not list((tmp_path / "state" / "networks").iterdir())
