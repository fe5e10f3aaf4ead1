"""Decides whether a pod runs as containers or as processes, and finds its images.

A pod whose template names a command of this machine (``serving.dev/command``, as ``serving deploy --command`` writes it) is
processes. Any other pod runs its images, where something can run them. Where an image cannot be had, a pod whose containers
all name a command runs those commands as processes, which is said aloud; another pod waits for its image.

Processes whose template asks for it (``serving.dev/network: pod``) have the network of containers and nothing else of them.
"""

import asyncio
from collections.abc import Awaitable, Callable

from serving.aio.clock import now_s
from serving.aio.periodic import wait_for
from serving.cluster.kinds import SECRET
from serving.home.containers.podbox import PodBox
from serving.home.images.pullers import credentials_of
from serving.home.images.store import ImageUnavailable, StoredImage
from serving.home.kubelet.podsetup import PodSetup
from serving.home.pods.podfolder import disk_error
from serving.home.pods.podplan import ContainerState, all_containers, container_name_of
from serving.model.errors import InvalidValue, NotFound
from serving.model.knative import COMMAND_ANNOTATION, FOLDER_ANNOTATION, NETWORK_ANNOTATION, REVISION_UID_LABEL
from serving.model.objects import Object, annotations_of, labels_of, namespace_of
from serving.traffic.backoff import backoff_s

_NO_NETWORK = "pods have networks of their own only where containers run as root, see `serving doctor`"

_PAUSE_FIRST_S, _PAUSE_MAX_S = 5.0, 300.0


def runs_images(pod: Object) -> bool:
    """Whether a pod is meant to run its images."""
    annotations = annotations_of(pod)
    return COMMAND_ANNOTATION not in annotations and FOLDER_ANNOTATION not in annotations


def has_own_network(pod: Object) -> bool:
    """Whether the processes of a pod are to have a network of their own."""
    return annotations_of(pod).get(NETWORK_ANNOTATION) == "pod" and not runs_images(pod)


def names_commands(pod: Object) -> bool:
    """Whether each container of a pod names a command, which could be one of this machine."""
    return all(container.get("command") for container in all_containers(pod))


async def box_of(
    setup: PodSetup,
    *,
    was_boxed: bool | None,
    on_state: Callable[[str, ContainerState], None],
    warn: Callable[[str, str], Awaitable[None]],
    stop: asyncio.Event,
) -> PodBox | None:
    """Prepare the pod's containers once all images are there; None for processes or a deleted pod.

    ``was_boxed`` is what an earlier control process chose, None for a new pod. ``on_state`` gets what a container waits for, ``warn`` the reason and message of an Event.
    """
    host, pod, failure_count = setup.node.containers, setup.manifest, 0
    has_network = has_own_network(pod)
    if has_network and (host is None or host.networks is None):
        await warn("NoOwnNetwork", f"the app must listen on $PORT: {_NO_NETWORK}")
        return None
    if host is None or not (has_network or (runs_images(pod) if was_boxed is None else was_boxed)):
        return None
    revision = labels_of(pod).get(REVISION_UID_LABEL, "")
    while True:
        name = ""
        images: dict[str, StoredImage] = {}
        try:
            credentials = b"" if has_network else await _credentials(setup, warn)
            for container in () if has_network else all_containers(pod):
                name, policy = container_name_of(container), container.get("imagePullPolicy", "")
                key = f"{revision}/{name}" if revision else ""
                images[name] = await host.images.ensure(
                    container.get("image", ""), policy=policy, key=key, credentials=credentials
                )
            box = setup.box(host, images)
            await box.prepare()
        except ImageUnavailable as error:
            if names_commands(pod):
                await warn("ImageNotRun", f"{error}; the commands of the manifest run as processes of this machine")
                return None
            waiting = ContainerState(waiting_reason=error.reason, waiting_message=str(error))
            await warn(error.reason, str(error))
        except OSError as error:
            why = disk_error(error, setup.node.pods)
            waiting = ContainerState(waiting_reason="CreatePodSandboxError", waiting_message=why)
        else:
            return box
        on_state(name, waiting)
        failure_count += 1
        pause_s = backoff_s(failure_count, first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S)
        if await wait_for(stop, until_s=now_s() + pause_s):
            return None


async def _credentials(setup: PodSetup, warn: Callable[[str, str], Awaitable[None]]) -> bytes:
    """Collect registry credentials from the pod's imagePullSecrets.

    A Secret without credentials is reported as an event; the pull is tried all the same.
    """
    found = []
    for name in dict.fromkeys(one.get("name", "") for one in setup.manifest["spec"].get("imagePullSecrets") or ()):
        try:
            secret = await setup.node.cluster.get(SECRET, namespace_of(setup.manifest), name)
            credentials_of([secret])
        except (NotFound, InvalidValue) as error:
            why = f"expected {error.expected}" if isinstance(error, InvalidValue) else str(error)
            await warn("FailedToRetrieveImagePullSecret", f"imagePullSecrets: {name}: {why}")
        else:
            found.append(secret)
    return credentials_of(found)
