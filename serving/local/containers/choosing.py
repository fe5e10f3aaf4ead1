"""Whether a pod runs as containers or as processes, and the images of one that runs as containers.

A pod whose template names a command of this machine (``serving.dev/command``, as ``serving deploy --command`` writes it) is
processes. Any other pod runs its images, where something can run them. Where an image cannot be had, a pod whose containers
all name a command runs those commands as processes, which is said aloud; another pod waits for its image.
"""

import asyncio
from collections.abc import Callable, Mapping

from serving.aio.clock import now_s
from serving.aio.periodic import wait_for
from serving.cluster.port import Object
from serving.local.images.source import ImageSource, ImageUnavailable
from serving.local.images.store import StoredImage
from serving.local.podplan import ContainerState, container_name_of
from serving.model.knative import COMMAND_ANNOTATION, FOLDER_ANNOTATION
from serving.model.objects import annotations_of

__all__ = ["images_of", "names_commands", "runs_images"]

_PAUSE_FIRST_S, _PAUSE_FACTOR, _PAUSE_MAX_S = 5.0, 2.0, 300.0


def runs_images(pod: Object) -> bool:
    """Whether a pod is meant to run its images."""
    annotations = annotations_of(pod)
    return COMMAND_ANNOTATION not in annotations and FOLDER_ANNOTATION not in annotations


def names_commands(pod: Object) -> bool:
    """Whether each container of a pod names a command, which could be one of this machine."""
    return all(container.get("command") for container in pod["spec"]["containers"])


async def images_of(
    pod: Object, source: ImageSource, *, on_state: Callable[[str, ContainerState], None], stop: asyncio.Event
) -> Mapping[str, StoredImage] | None:
    """The image of each container; None if the pod is deleted while one is missing.

    Raises:
        ImageUnavailable: when one cannot be had and the pod names commands.
    """
    pause_s = _PAUSE_FIRST_S
    while True:
        found: dict[str, StoredImage] = {}
        name = ""
        try:
            for container in pod["spec"]["containers"]:
                name = container_name_of(container)
                found[name] = await source.ensure(
                    container.get("image", ""), policy=container.get("imagePullPolicy", "")
                )
        except ImageUnavailable as error:
            if names_commands(pod):
                raise
            on_state(name, ContainerState(waiting_reason=error.reason, waiting_message=str(error)))
        else:
            return found
        if await wait_for(stop, until_s=now_s() + pause_s):
            return None
        pause_s = min(pause_s * _PAUSE_FACTOR, _PAUSE_MAX_S)
