"""What ``serving why`` says beside decisions: why a revision is not ready, and what its HorizontalPodAutoscaler decided."""

from collections.abc import Callable, Iterator

from serving.cli.client.api import ApiClient
from serving.cli.client.logtail import last_lines
from serving.cli.client.objects import condition, revisions_of
from serving.cli.client.resources import path_of
from serving.cluster.kinds import HORIZONTAL_POD_AUTOSCALER, REVISION, SERVING_SERVICE
from serving.model.objects import Object, condition_of, name_of, nested

_LOG_LINES = 5


def unready_lines(api: ApiClient, name: str) -> list[str]:
    """Lines about the revision NAME, or about the newest revision of the service NAME; none if it is ready or unknown."""
    return [line for revision in _revisions(api, name) for line in _lines(api, revision)]


def pod_scaler_lines(api: ApiClient, is_ours: Callable[[str], bool]) -> Iterator[str]:
    """What the HorizontalPodAutoscalers of revisions decided last; the autoscaler decides nothing about those revisions."""
    status, found = api.call("GET", path_of(HORIZONTAL_POD_AUTOSCALER, api.namespace))
    for one in found.get("items") or () if status < 400 else ():
        if not is_ours(name_of(one)):
            continue
        said = [condition_of(one, kind).get("message") for kind in ("ScalingActive", "AbleToScale")]
        what = next((text for text in said if text), "nothing is decided yet")
        yield f"{name_of(one)} by its HorizontalPodAutoscaler (class hpa): {what}"


def _revisions(api: ApiClient, name: str) -> list[Object]:
    status, _ = api.call("GET", path_of(SERVING_SERVICE, api.namespace, name))
    if status < 400:
        # An older revision that failed was superseded: it explains nothing about the present.
        return revisions_of(api, name)[:1]
    status, revision = api.call("GET", path_of(REVISION, api.namespace, name))
    return [revision] if status < 400 else []


def _lines(api: ApiClient, revision: Object) -> Iterator[str]:
    ready = condition(revision)
    if not ready or ready.get("status") == "True" or nested(revision, "spec", "servingState") == "Retired":
        return
    name = name_of(revision)
    message = ready.get("message", "").strip()
    what = ": ".join(one for one in (ready.get("reason", ""), message) if one) or "its pods are starting"
    first, *more = what.splitlines()
    yield f"{name} is not ready: {first}"
    yield from (f"  {line}" for line in more)
    log = [line for line in last_lines(api, name, count=_LOG_LINES) if line.strip() and line.strip() not in what]
    if log:
        yield f"last lines of the log of {name}:"
        yield from (f"  {line}" for line in log)
