"""The end of what a revision's pod has written, for messages about it. What cannot be read is left out."""

import contextlib
from collections.abc import Iterable

from serving.cli.client.api import ApiCall, ApiClient
from serving.cli.client.objects import items_of
from serving.cli.client.resources import path_of
from serving.cluster.kinds import POD
from serving.controller.values.naming import deployment_name
from serving.home.apiserver.logoptions import KEPT_LOGS_PATH
from serving.home.pods.podfolder import excerpt
from serving.model.errors import ServingError
from serving.model.knative import REVISION_LABEL
from serving.model.objects import Object, name_of, nested

QUEUE_PROXY = "queue-proxy"
# The first line of a traceback is often far above its end.
_SOUGHT_LINES = 200
_OF_REVISION = REVISION_LABEL + "={}"


def app_container(pod: Object) -> str:
    """The container of the app: the first that is not the queue-proxy."""
    names = [str(one.get("name", "")) for one in nested(pod, "spec", "containers") or ()]
    return next((name for name in names if name != QUEUE_PROXY), "")


def gone_pods(api: ApiClient, revisions: Iterable[str]) -> list[Object]:
    """Pods of revisions that are gone and whose logs one machine keeps, the last one first: names and containers. None on a cluster."""
    status, kept = api.call("GET", KEPT_LOGS_PATH.format(namespace=api.namespace))
    if status >= 400 or not isinstance(kept, list):
        return []
    there = {name_of(one) for one in items_of(api, POD)}
    beginnings = tuple(f"{deployment_name(one)}-" for one in revisions)
    return [
        {
            "metadata": {"name": one["pod"], "namespace": api.namespace},
            "spec": {"containers": [{"name": name} for name in one["containers"]]},
        }
        for one in kept
        if one["pod"] not in there and one["pod"].startswith(beginnings)
    ]


def last_lines(api: ApiClient, revision: str, *, count: int) -> list[str]:
    """The last lines of the app in the newest pod of a revision that has any; without a pod, of the last one that is gone.

    A pod that has not written anything since its restart shows the run before. A traceback has its first line.
    """
    pods = items_of(api, POD, _OF_REVISION.format(revision))
    newest_first = sorted(pods, key=lambda one: str(nested(one, "metadata", "creationTimestamp")), reverse=True)
    for pod in newest_first or gone_pods(api, [revision])[:1]:
        path = path_of(POD, api.namespace, name_of(pod), subresource="log")
        for run in ({}, {"previous": "true"}):
            query = {"container": app_container(pod), "tailLines": str(_SOUGHT_LINES), **run}
            with (
                contextlib.suppress(ServingError),
                api.stream(ApiCall(path=path, query=query, accept="*/*")) as answer,
            ):
                text = b"".join(answer.pieces()).decode("utf-8", "replace")
                if text.strip():
                    return excerpt(text.splitlines(), count=count).splitlines()
    return []
