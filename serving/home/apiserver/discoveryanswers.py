"""Discovery paths and their responses."""

from aiohttp import web

from serving.home.apiserver import discovery
from serving.home.apiserver.answers import json_answer
from serving.model.errors import NotFound
from serving.model.objects import Object

_UNKNOWN = "the server could not find the requested resource"


def discovery_answer(raw_path: str, accept: str) -> web.Response | None:
    """The response to a discovery path; None for other paths."""
    aggregated = discovery.aggregated_version(accept)
    found: Object | None
    match raw_path.strip("/").split("/"):
        case ["api" | "apis" as root] if aggregated:
            answer = json_answer(discovery.aggregated(aggregated, core=root == "api"))
            kind = f"application/json;g=apidiscovery.k8s.io;v={aggregated};as=APIGroupDiscoveryList"
            answer.headers["Content-Type"] = kind
            return answer
        case ["api"]:
            found = discovery.api_versions()
        case ["apis"]:
            found = discovery.group_list()
        case ["api", version]:
            found = discovery.resource_list("", version)
        case ["apis", group]:
            found = discovery.group_of(group)
        case ["apis", group, version]:
            found = discovery.resource_list(group, version)
        case [""]:
            found = {
                "paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]
            }
        case _:
            return None
    if found is None:
        raise NotFound(_UNKNOWN)
    return json_answer(found)
