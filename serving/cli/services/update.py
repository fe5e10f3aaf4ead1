"""``serving update``: changes some settings of a service, as a new revision, and keeps all others."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from serving.cli.client.api import ApiClient, api_options, fail_usage, until_written
from serving.cli.client.completion import complete_service
from serving.cli.client.objects import service_of
from serving.cli.client.output import Progress
from serving.cli.client.resources import path_of, wait_timeout_option
from serving.cli.services.deployment import pairs_of, policy_annotation
from serving.cli.services.url import print_url
from serving.cli.services.waiting import until_ready
from serving.cluster.kinds import SERVING_SERVICE
from serving.model.errors import InvalidValue
from serving.model.knative import AUTOSCALING_GROUP, COMMAND_ANNOTATION
from serving.model.objects import Object
from serving.model.quantity import parse_bytes, parse_millicores
from serving.settings.autoscaler import POLICIES

_TIMEOUT_S = 300.0


class ServiceUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The changes; None, "" and empty where an option was not given."""

    environment: Mapping[str, str] = {}
    removed: tuple[str, ...] = ()
    clear_env: bool = False
    command: str | None = None
    image: str | None = None
    concurrency: int | None = None
    timeout: int | None = None
    min_scale: int | None = None
    max_scale: int | None = None
    cpu: str | None = None
    memory: str | None = None
    annotations: Mapping[str, str] = {}


def updated(service: Object, wanted: ServiceUpdate) -> Object:
    """The service with the change. Raises ``InvalidValue`` if a variable to remove does not exist."""
    changed = copy.deepcopy(service)
    template = changed["spec"].setdefault("template", {})
    metadata, spec = template.setdefault("metadata", {}), template.setdefault("spec", {})
    # A revision's name is used once.
    metadata.pop("name", None)
    annotations = metadata.setdefault("annotations", {})
    scaling = {"min-scale": wanted.min_scale, "max-scale": wanted.max_scale}
    texts = {f"{AUTOSCALING_GROUP}/{key}": str(count) for key, count in scaling.items() if count is not None}
    if wanted.command is not None:
        texts[COMMAND_ANNOTATION] = wanted.command
    for key, text in {**texts, **wanted.annotations}.items():
        if text:
            annotations[key] = text
        else:
            annotations.pop(key, None)
    for field, number in (("containerConcurrency", wanted.concurrency), ("timeoutSeconds", wanted.timeout)):
        if number is not None:
            spec[field] = number
    container = spec["containers"][0]
    if wanted.image is not None:
        container["image"] = wanted.image
    container["env"] = _environment(container.get("env") or [], wanted)
    limits = {key: text for key, text in (("cpu", wanted.cpu), ("memory", wanted.memory)) if text is not None}
    if limits:
        resources = container.setdefault("resources", {})
        resources["limits"] = {**resources.get("limits", {}), **limits}
    return changed


def _environment(before: list[Object], wanted: ServiceUpdate) -> list[Object]:
    kept = {} if wanted.clear_env else {one["name"]: one for one in before}
    for name in wanted.removed:
        if name not in kept:
            expected = f"one of its variables: {', '.join(sorted(kept)) or 'it has none'}"
            raise InvalidValue(text=name, expected=expected)
        del kept[name]
    return [*{**kept, **{name: {"name": name, "value": text} for name, text in wanted.environment.items()}}.values()]


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.option(
    "-e", "--env", "--update-env-vars", "environment", multiple=True, metavar="NAME=VALUE", help="Set a variable."
)
@click.option("--remove-env", "removed", multiple=True, metavar="NAME", help="Remove a variable.")
@click.option("--clear-env", is_flag=True, help="Remove all variables first.")
@click.option("--command", help="Another command, as in `serving deploy`.")
@click.option("--image", help="Another image.")
@click.option("--concurrency", type=click.IntRange(0), help="Requests at once per pod; 0 is no limit.")
@click.option("--timeout", type=click.IntRange(1), help="Longest time of a request, in seconds.")
@click.option("--min-scale", type=click.IntRange(0), help="Fewest pods.")
@click.option("--max-scale", type=click.IntRange(0), help="Most pods; 0 is no limit.")
@click.option(
    "--policy",
    "scaling_policy",
    type=click.Choice(POLICIES),
    help="How it scales: as Knative, or adaptively, by the history of its requests.",
)
@click.option("--cpu", metavar="CPU", help="Limit of cpu, as 500m or 2.")
@click.option("--memory", metavar="MEMORY", help="Limit of memory, as 256Mi.")
@click.option("--annotate", multiple=True, metavar="KEY=VALUE", help="An annotation of the template; KEY= removes it.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is ready.")
@wait_timeout_option(_TIMEOUT_S)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def update(*, api: ApiClient, name: str, wait: bool, wait_s: float, output: str, **asked: Any) -> None:  # noqa: ANN401 - the options of the command
    """Change settings of service NAME. Others stay as they are, code and traffic included."""
    try:
        for flag, read in (("cpu", parse_millicores), ("memory", parse_bytes)):
            text = asked.get(flag)
            if text is not None and read(text) <= 0:
                fail_usage(f"--{flag} {text}: a limit is more than 0")
        wanted = ServiceUpdate(
            environment=pairs_of(asked.pop("environment"), "--env", "NAME"),
            annotations={
                **policy_annotation(asked.pop("scaling_policy")),
                **pairs_of(asked.pop("annotate"), "--annotate", "KEY"),
            },
            **asked,
        )
    except InvalidValue as error:
        fail_usage(str(error))
    if wanted == ServiceUpdate():
        fail_usage("name a change: see `serving update --help`")
    with Progress(f"updating {name}"):
        service = _written(api, name, wanted)
        if wait:
            service = until_ready(api, name, timeout_s=wait_s)
    if output == "json":
        click.echo(json.dumps(service, indent=2))
    elif wait:
        print_url(api, service)
    else:
        click.echo(f"service/{name} changed; `serving wait {name}` waits until it is ready")


def _written(api: ApiClient, name: str, wanted: ServiceUpdate) -> Object:
    path = f"{path_of(SERVING_SERVICE, api.namespace)}/{name}"
    try:
        _, after = until_written(lambda: api.call("PUT", path, updated(service_of(api, name), wanted)))
    except InvalidValue as error:
        fail_usage(str(error))
    return dict(after)
