"""Objects as HTTP responses: whole, as a table, or as metadata only, as the client accepts."""

from collections.abc import Iterable

import msgspec
from aiohttp import web

from serving.aio.clock import wall_s
from serving.cluster.kinds import Kind
from serving.cluster.port import Listing
from serving.home.apiserver.content import Shape, WantedShape
from serving.home.apiserver.fields import warning_header
from serving.home.apiserver.tables import metadata_list, partial_metadata, table
from serving.home.store.memory import EncodedListing
from serving.model.objects import Object

JSON_TYPE = "application/json"


def json_response(body: object, *, status: int = 200, warnings: Iterable[str] = ()) -> web.Response:
    """A JSON response with a header for each warning."""
    response = web.Response(body=msgspec.json.encode(body), status=status, content_type=JSON_TYPE)
    for warning in warnings:
        response.headers.add("Warning", warning_header(warning))
    return response


def shaped_object(kind: Kind, one: Object, *, wanted: WantedShape, include: str) -> Object:
    """One object in the accepted shape. Other responses, such as a Status, stay unchanged."""
    if wanted.shape is Shape.WHOLE or one.get("kind") not in {kind.name, None}:
        return one
    if wanted.shape is Shape.TABLE:
        metadata = {"resourceVersion": one.get("metadata", {}).get("resourceVersion", "")}
        return table(kind, [one], metadata, version=wanted.version, include=include, now_s=wall_s())
    return partial_metadata(one, wanted.version)


def whole_list(kind: Kind, listing: EncodedListing) -> Object:
    """A list of whole objects."""
    return {
        "kind": f"{kind.name}List",
        "apiVersion": kind.api_version,
        "metadata": _list_metadata(listing),
        "items": [msgspec.Raw(item) for item in listing.items],
    }


def _list_metadata(listing: Listing | EncodedListing) -> Object:
    page = listing.next_page
    return {"resourceVersion": listing.resource_version, **({"continue": page} if page else {})}


def shaped_list(kind: Kind, listing: Listing, *, wanted: WantedShape, include: str) -> Object:
    """A list as a table or as metadata only."""
    metadata = _list_metadata(listing)
    if wanted.shape is Shape.TABLE:
        return table(kind, listing.items, metadata, version=wanted.version, include=include, now_s=wall_s())
    return metadata_list(listing.items, metadata, wanted.version)
