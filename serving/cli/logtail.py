"""The end of what a revision's pod has written, for messages about it. What cannot be read is left out."""

import contextlib

from serving.cli.api import ApiCall, ApiClient
from serving.cli.objects import items_of
from serving.cli.resources import path_of
from serving.cluster.kinds import POD
from serving.cluster.port import Object
from serving.model.errors import ServingError
from serving.model.knative import REVISION_LABEL
from serving.model.objects import name_of, nested

__all__ = ["QUEUE_PROXY", "app_container", "last_lines"]

QUEUE_PROXY = "queue-proxy"
_OF_REVISION = REVISION_LABEL + "={}"


def app_container(pod: Object) -> str:
    """The container of the app: the first that is not the queue-proxy."""
    names = [str(one.get("name", "")) for one in nested(pod, "spec", "containers") or ()]
    return next((name for name in names if name != QUEUE_PROXY), "")


def last_lines(api: ApiClient, revision: str, *, count: int) -> list[str]:
    """The last lines of the app in the newest pod of a revision; of the run before, if this one has not said anything yet."""
    pods = items_of(api, POD, _OF_REVISION.format(revision))
    for pod in sorted(pods, key=lambda one: str(nested(one, "metadata", "creationTimestamp")), reverse=True):
        path = path_of(POD, api.namespace, name_of(pod), subresource="log")
        for run in ({}, {"previous": "true"}):
            query = {"container": app_container(pod), "tailLines": str(count), **run}
            with (
                contextlib.suppress(ServingError),
                api.stream(ApiCall(path=path, query=query, accept="*/*")) as answer,
            ):
                text = b"".join(answer.pieces()).decode("utf-8", "replace")
                if text.strip():
                    return text.splitlines()
    return []
