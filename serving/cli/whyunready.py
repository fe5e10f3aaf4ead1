"""What ``serving why`` says of a revision that is not ready: the reason of its condition and the end of its log."""

from collections.abc import Iterator

from serving.cli.api import ApiClient
from serving.cli.logtail import last_lines
from serving.cli.objects import condition, revisions_of
from serving.cli.resources import path_of
from serving.cluster.kinds import REVISION, SERVING_SERVICE
from serving.cluster.port import Object
from serving.model.objects import name_of, nested

__all__ = ["unready_lines"]

_LOG_LINES = 5


def unready_lines(api: ApiClient, name: str) -> list[str]:
    """Lines about the revision NAME, or about the newest revision of the service NAME; none if it is ready or unknown."""
    return [line for revision in _revisions(api, name) for line in _lines(api, revision)]


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
