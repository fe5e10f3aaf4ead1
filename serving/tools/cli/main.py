"""The command ``serving``: a group of subcommands. Each is imported on use."""

import difflib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import click

from serving import __version__
from serving.core.model.launch import USAGE_EXIT

Section = Mapping[str, tuple[str, str]]
"""Commands by name: "module:attribute", and the line that the help of the group shows."""

_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130
_TRACEBACK = "SERVING_TRACEBACK"

# What other tools call these commands.
_SYNONYMS = {
    **dict.fromkeys(("list", "ls", "ps", "service", "services", "pods"), "get"),
    **dict.fromkeys(("run", "create", "new", "start"), "deploy"),
    **dict.fromkeys(("rm", "remove", "destroy"), "delete"),
    **dict.fromkeys(("stop", "shutdown"), "down"),
    **dict.fromkeys(("curl", "call"), "invoke"),
    **dict.fromkeys(("rollback", "route"), "traffic"),
    **dict.fromkeys(("explain", "history"), "why"),
    "edit": "update",
}
# What does the work of other tools' commands where no command has its name: words after `serving`.
_HINTS = {
    "annotate": "update NAME --annotate KEY=VALUE",
    "api-resources": "get --help, which lists the kinds",
    "api-versions": "get --help, which lists the kinds",
    "attach": "logs NAME -f",
    "auth": "token",
    "autoscale": "scale NAME --min 1 --max 5",
    "build": "deploy NAME FOLDER, which builds the folder's Containerfile",
    "cluster-info": "status",
    "cordon": "nodegroups",
    "cp": "exec NAME -- cat FILE, or volume",
    "debug": "exec NAME -- sh",
    "diff": "apply -f FILE --dry-run",
    "domain": "get domainmappings",
    "drain": "nodegroups",
    "env": "update NAME -e KEY=VALUE",
    "expose": "url NAME",
    "images": "image list",
    "init": "deploy NAME FOLDER --command '...'",
    "label": "apply -f FILE with the label",
    "open": "url NAME, or dashboard",
    "patch": "update NAME",
    "port-forward": "url NAME, or invoke NAME",
    "proxy": "url NAME",
    "pull": "image pull",
    "replace": "apply -f FILE",
    "restart": "update NAME --annotate restarted=1, a new revision",
    "rollout": "wait NAME, traffic NAME --rollback, or why NAME",
    "secret": "get secrets, or apply -f FILE",
    "set": "update NAME",
    "undeploy": "delete NAME",
    "volumes": "volume list",
}
# Commands of kn and gcloud after the word "service" or "services".
_SERVICE_WORDS = {
    **dict.fromkeys(("create", "deploy", "replace"), "deploy NAME"),
    **dict.fromkeys(("apply", "import"), "apply -f FILE"),
    **dict.fromkeys(("list", "export"), "get services"),
    "delete": "delete NAME",
    "describe": "describe NAME",
    "update": "update NAME",
}
# Options of other tools' commands, and what does their work.
_OPTION_HINTS = {
    ("deploy", "--source"): "name the folder: serving deploy NAME FOLDER",
    ("deploy", "--tag"): "serving traffic NAME --tag @latest=TAG",
    ("deploy", "--no-traffic"): "serving traffic NAME REVISION=100 keeps the traffic on a revision",
    ("deploy", "--allow-unauthenticated"): "a service is public unless --access private",
    ("deploy", "--region"): "leave it out: there is one machine or cluster",
    ("deploy", "--platform"): "leave it out: there is one machine or cluster",
    ("deploy", "--filename"): "serving apply -f FILE",
    ("deploy", "-f"): "serving apply -f FILE",
}

# A new command is one line: its name, its module and its line of help.
SECTIONS: dict[str, Section] = {
    "The system": {
        "up": ("serving.tools.cli.system.up:up", "Run everything on this machine."),
        "down": ("serving.tools.cli.system.status:down", "End what `up` runs."),
        "status": ("serving.tools.cli.system.status:status", "Whether the system runs, and where it answers."),
        "version": ("serving.tools.cli.system.status:version", "The versions of this program and of the server."),
        "dashboard": (
            "serving.tools.cli.system.dashboard:dashboard",
            "Where the dashboard is; or serve one for a cluster.",
        ),
        "top": ("serving.tools.cli.system.top:top", "What runs now, in the terminal."),
        "doctor": ("serving.tools.cli.system.doctor:doctor", "Is this machine fit, does the system run and answer."),
        "completion": ("serving.tools.cli.client.completion:completion", "Make a shell complete commands and names."),
        "install": (
            "serving.tools.cli.system.install:install",
            "Put the system on a Kubernetes cluster, or take it off.",
        ),
        "kubeconfig": ("serving.tools.cli.services.access:kubeconfig", "Print a kubeconfig, also for a user's token."),
        "backup": (
            "serving.tools.cli.system.backup:backup",
            "Save the services and secrets of this machine to a file.",
        ),
        "restore": ("serving.tools.cli.system.backup:restore", "Fill an empty state folder from such a file."),
        "bundle": ("serving.tools.cli.system.bundle:bundle", "Collect what a bug report needs, without secrets."),
        "install-service": (
            "serving.tools.cli.system.service:install_service",
            "Run the system by systemd, from boot on.",
        ),
        "config": ("serving.tools.cli.system.config:config", "Show, check and print settings."),
    },
    "Services": {
        "apply": ("serving.tools.cli.services.apply:apply", "Make or change what manifests describe."),
        "deploy": ("serving.tools.cli.services.deploy:deploy", "Run a command as a service."),
        "image": ("serving.tools.cli.services.image:image", "The images that pods on this machine run."),
        "update": ("serving.tools.cli.services.update:update", "Change a part of what a service runs with."),
        "convert": (
            "serving.tools.cli.services.convert:convert",
            "Knative manifests from compose files and KEDA's HTTP add-on.",
        ),
        "get": ("serving.tools.cli.services.get:get", "Show services, revisions, pods, ..."),
        "describe": (
            "serving.tools.cli.services.describe:describe",
            "All about one service: state, traffic, pods, events.",
        ),
        "logs": ("serving.tools.cli.services.logs:logs", "Print the logs of a service's pods."),
        "requests": ("serving.tools.cli.services.requests:requests", "Failed and slow requests of a service, and why."),
        "stats": ("serving.tools.cli.services.stats:stats", "The history of a service: requests, latency, pods."),
        "compare": ("serving.tools.cli.services.compare:compare", "Two revisions of a service side by side."),
        "cost": (
            "serving.tools.cli.services.cost:cost",
            "Pod-hours and memory of services, and what else they would be.",
        ),
        "exec": ("serving.tools.cli.services.exec:execute", "Run a command in a pod of a service."),
        "invoke": ("serving.tools.cli.services.invoke:invoke", "Send a request to a service."),
        "volume": ("serving.tools.cli.services.volume:volume", "Folders that outlive pods."),
        "url": ("serving.tools.cli.services.url:url", "Where a service answers."),
        "token": ("serving.tools.cli.services.token:token", "Tokens of private services, and of users of the API."),
        "traffic": (
            "serving.tools.cli.services.traffic:traffic",
            "Split traffic between revisions, tag them, roll back.",
        ),
        "scale": ("serving.tools.cli.services.scale:scale", "Bound the number of pods of a service."),
        "wait": ("serving.tools.cli.services.waiting:wait", "Wait until a service is ready, gone or at zero."),
        "delete": ("serving.tools.cli.services.delete:delete", "Delete services with their revisions and pods."),
    },
    "Decisions": {
        "why": ("serving.tools.cli.decisions.why:why", "Why a service has its pods, or a node group its nodes."),
        "nodegroups": (
            "serving.tools.cli.nodes.nodegroups:nodegroups",
            "Node groups: what they are and what they did.",
        ),
        "replay": ("serving.tools.cli.decisions.replay:replay", "Decide again what the decision log has."),
        "simulate": (
            "serving.tools.cli.decisions.simulate:simulate",
            "Run a service, or a recorded workload, on the virtual clock.",
        ),
        "tune": ("serving.tools.cli.decisions.tune:tune", "Settings that fit a recorded workload and a budget."),
    },
}


class LazyGroup(click.Group):
    """Commands in sections. A new command is one line in one of them."""

    def __init__(self, *args: Any, sections: Mapping[str, Section] | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self._sections = dict(sections or {})
        self._places = {name: place for section in self._sections.values() for name, (place, _) in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted({*self._places, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; None if there is none of that name."""
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{place} is no command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named command; the error for an unknown name suggests similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            named = args[0] if args else ""
            commands = self.list_commands(ctx)
            synonym = _SYNONYMS.get(named)
            hint = _hint(args) if commands == sorted(self._places) else ""
            if hint:
                raise click.UsageError(
                    f"{error.message.partition(' Did you mean')[0]} Did you mean serving {hint}?", ctx
                ) from None
            near = [synonym] if synonym in commands else difflib.get_close_matches(named, commands)
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help's sections, from the tables alone."""
        del ctx
        width = max(map(len, self._places), default=0)
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in section.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Run the command; an unexpected error becomes one line."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            hint = _OPTION_HINTS.get((error.ctx.info_name or "" if error.ctx else "", error.option_name))
            if hint is None:
                raise
            raise click.UsageError(f"No such option: {error.option_name}; {hint}", error.ctx) from None
        except KeyboardInterrupt:
            sys.exit(_EXIT_INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # the outermost frame of the command line
            if os.environ.get(_TRACEBACK):
                raise
            _end_with(error)


def _hint(args: list[str]) -> str:
    """The command that does the work of another tool's, as words after "serving"; "" for none."""
    word, *rest = args or [""]
    if word in {"service", "services", "ksvc", "revision", "revisions"} and rest and rest[0] in _SERVICE_WORDS:
        return _SERVICE_WORDS[rest[0]].replace("services", "revisions" if word.startswith("revision") else "services")
    if word in _HINTS or word in _SYNONYMS:
        return _HINTS.get(word, "")
    # Only here, so that the help does not wait for the import.
    from serving.core.model.errors import InvalidValue  # noqa: PLC0415 - as above
    from serving.tools.cli.client.resources import kind_named  # noqa: PLC0415 - as said

    try:
        kind = kind_named(word)
    except InvalidValue:
        return ""
    return f"get {word if kind.plural != word.lower() else kind.plural}"


def _end_with(error: Exception) -> NoReturn:
    """Print one line for an unexpected error; errors for users keep their message."""
    # Only here, so that the help does not wait for the import.
    from serving.core.model.errors import ServingError, SettingsError  # noqa: PLC0415 - as said

    if isinstance(error, ServingError):
        click.echo(str(error), err=True)
        sys.exit(USAGE_EXIT if isinstance(error, SettingsError) else _EXIT_FAILED)
    if isinstance(error, OSError):
        click.echo("".join(_os_error(error)), err=True)
    else:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        click.echo(f"internal error: {text}; {_TRACEBACK}=1 shows the traceback", err=True)
    sys.exit(_EXIT_FAILED)


def _os_error(error: OSError) -> Iterator[str]:
    if error.filename is not None:
        yield f"{error.filename}: "
    yield error.strerror or str(error) or type(error).__name__


@click.group(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="serving")
def main() -> None:
    """Request-driven serverless: HTTP traffic decides how many pods run."""
