"""``serving traffic``: shows and sets each revision's share of requests, and tags."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from serving.core.model.errors import InvalidValue, ServingError
from serving.core.model.event import ROLLBACK_REASON, TRAFFIC_REASON, EventText, about, new_event
from serving.core.model.objects import Object, is_dns_label, name_of, nested
from serving.net.cluster.kinds import EVENT, SERVING_SERVICE
from serving.net.cluster.servicepatch import LATEST, TrafficRequest, desired_traffic, rollback_target, shares_text
from serving.tools.cli.client.api import ApiClient, adding, api_options, fail_usage
from serving.tools.cli.client.completion import complete_revision, complete_service
from serving.tools.cli.client.objects import revisions_of, service_of
from serving.tools.cli.client.output import Progress, aligned, output_option
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.services.waiting import until_ready

_TIMEOUT_S = 300.0
_ALL_PERCENT = 100


class NewTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of a service's next revision: none if ``is_pinned``. ``tag`` is its traffic tag, or ""."""

    is_pinned: bool = False
    """Whether the present revisions keep all traffic."""
    tag: str = ""
    """The tag of the next revision; "" for no tag."""


traffic_options = adding(
    click.option(
        "--no-traffic", is_flag=True, help="Send no traffic to the new revision; `serving traffic` changes this later."
    ),
    click.option("--tag", default="", help="Tag the new revision, which gives it a separate URL."),
)
"""Adds ``--no-traffic`` and ``--tag`` to a command that creates a revision."""


def traffic_from(options: dict[str, Any], *, wait: bool) -> NewTraffic:
    """Remove and return the traffic options. Exits if they are invalid."""
    traffic = NewTraffic(is_pinned=options.pop("no_traffic"), tag=options.pop("tag"))
    if traffic.tag and not is_dns_label(traffic.tag):
        fail_usage(
            f"--tag {traffic.tag!r} is not a tag: expected at most 63 of a-z, 0-9 and '-', as in --tag candidate"
        )
    if traffic.tag and not wait:
        fail_usage(
            "--tag names the new revision once it is ready: leave out --no-wait, or later `serving traffic NAME --tag`"
        )
    return traffic


def tagged(api: ApiClient, service: Object, tag: str) -> Object:
    """Tag the newest ready revision of a service, and wait for the tag's URL; return the service."""
    newest = str(nested(service, "status", "latestReadyRevisionName"))
    targets = desired_traffic(service, TrafficRequest(tags={tag: newest}))
    api.done("PATCH", path_of(SERVING_SERVICE, api.namespace, name_of(service)), {"spec": {"traffic": targets}})
    return until_ready(api, name_of(service), timeout_s=_TIMEOUT_S).service


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.argument("shares", nargs=-1, metavar="[REVISION=PERCENT]...", shell_complete=complete_revision)
@click.option(
    "--tag", "tags", multiple=True, metavar="REVISION=TAG", help="Tag a revision, which gives it a separate URL."
)
@click.option("--untag", "untagged", multiple=True, metavar="TAG", help="Remove a traffic tag.")
@click.option("--to-latest", is_flag=True, help="Send all traffic to the latest ready revision, now and later.")
@click.option("--rollback", is_flag=True, help="Send all traffic to the revision before the newest one with traffic.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the traffic split is in effect.")
@output_option()
@api_options
def traffic(*, api: ApiClient, name: str, shares: tuple[str, ...], output: str, wait: bool, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Show the traffic split of a service, or set it, as in hello-00001=90 hello-00002=10.

    A revision may be shortened to 00002 or 2; @latest is the newest ready revision. Tags are kept unless --untag
    removes them.
    """
    if sum((bool(shares), options["to_latest"], options["rollback"])) > 1:
        fail_usage("REVISION=PERCENT, --to-latest and --rollback each direct all traffic: use only one of them")
    service = service_of(api, name)
    if shares or options["to_latest"] or options["rollback"] or options["tags"] or options["untagged"]:
        revisions = revisions_of(api, name)
        try:
            wanted = _requested(service, revisions, options, shares=shares)
            targets = desired_traffic(service, wanted)
        except ServingError as error:
            fail_usage(str(error))
        with Progress(f"moving traffic of {name}"):
            path = path_of(SERVING_SERVICE, api.namespace, name)
            service = api.done("PATCH", path, {"spec": {"traffic": targets}})
            if wanted.shares:
                _record(api, service, wanted.shares, is_rollback=options["rollback"])
            if wait:
                service = until_ready(api, name, timeout_s=_TIMEOUT_S).service
    _print(service, output)


def _record(api: ApiClient, service: Object, shares: Mapping[str, int], *, is_rollback: bool) -> None:
    """Record an Event of the service for ``serving why``.

    If the user may not write Events, nothing is recorded.
    """
    from serving.net.aio.clock import stamp  # noqa: PLC0415 - it loads asyncio, which other commands of this file do not need

    reason, flag = (ROLLBACK_REASON, " --rollback") if is_rollback else (TRAFFIC_REASON, "")
    event = new_event(
        about({**service, "apiVersion": SERVING_SERVICE.api_version, "kind": SERVING_SERVICE.name}),
        EventText(reason=reason, message=f"requested by serving traffic{flag}: {shares_text(shares)}"),
        suffix=f"{time.time_ns() // 1_000_000:x}-cli",
        component="serving",
        now=stamp(),
    )
    api.call("POST", path_of(EVENT, api.namespace), event)


def _requested(
    service: Object, revisions: Sequence[Object], options: Mapping[str, Any], *, shares: Sequence[str]
) -> TrafficRequest:
    names = [name_of(revision) for revision in revisions]
    wanted: dict[str, int] = {}
    if options["to_latest"]:
        wanted = {LATEST: _ALL_PERCENT}
    elif options["rollback"]:
        wanted = {rollback_target(service, revisions): _ALL_PERCENT}
    for text in shares:
        word, _, percent = text.partition("=")
        if not percent.removesuffix("%").isdecimal():
            raise InvalidValue(text=text, expected="REVISION=PERCENT, as hello-00001=90")
        wanted[revision_named(word, service, names)] = int(percent.removesuffix("%"))
    tags = {}
    for text in options["tags"]:
        word, _, tag = text.partition("=")
        if not tag:
            raise InvalidValue(text=text, expected="REVISION=TAG, as hello-00002=canary")
        tags[tag] = revision_named(word, service, names)
    return TrafficRequest(shares=wanted, tags=tags, untagged=options["untagged"])


def revision_named(word: str, service: Object, names: Sequence[str]) -> str:
    """The revision of a service that a word such as "2" or "@latest" selects. Raises ``InvalidValue``."""
    if word == LATEST:
        return word
    prefix = f"{name_of(service)}-"
    for name in names:
        if word == name or prefix + word == name or (word.isdecimal() and name == f"{prefix}{int(word):05}"):
            return name
    raise InvalidValue(text=word, expected=f"a revision of it; there are {', '.join(names) or 'none'}, and @latest")


def _print(service: Object, output: str) -> None:
    targets = nested(service, "status", "traffic") or ()
    if output == "json":
        click.echo(json.dumps(targets, indent=2))
        return
    rows = [["PERCENT", "REVISION", "TAG", "URL"]]
    for target in targets:
        latest = " (latest)" if target.get("latestRevision") else ""
        url = target.get("url") or nested(service, "status", "url") or ""
        rows.append(
            [f"{target.get('percent') or 0}%", f"{target.get('revisionName', '')}{latest}", target.get("tag", ""), url]
        )
    click.echo("\n".join(aligned(rows)))
