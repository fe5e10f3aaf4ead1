"""The command ``serving``: a group of subcommands, each imported on use."""

import contextlib
import difflib
import errno
import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import click

from serving import __version__
from serving.core.model.launch import USAGE_EXIT
from serving.tools.cli.words import ANSWERS, OPTIONS, RUNS, command_of, suggestion_of

Section = Mapping[str, tuple[str, str]]
"""Commands by name: "module:attribute", and the command's line in the help of the group."""

_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130
_TRACEBACK = "SERVING_TRACEBACK"
_CLICK_EXTRA = "Got unexpected extra argument"
_CLICK_NO_COMMAND = "No such command"
# The least similarity of an option to what was typed.
_NEAR = 0.65
# The longer words first.
_CLICK_NUMBERS = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}
# Commands whose unknown options may be options of other tools.
_WITH_OPTIONS = frozenset({"deploy", "dev", "scale", "update"})

# To add a command, add a line with its name, module and help.
SECTIONS: dict[str, Section] = {
    "The system": {
        "up": ("serving.tools.cli.system.up:up", "Run everything on this machine."),
        "down": ("serving.tools.cli.system.status:down", "Stop the system that `up` started."),
        "status": ("serving.tools.cli.system.status:status", "Show whether the system runs, and its URL."),
        "version": ("serving.tools.cli.system.status:version", "Print the client and server version information."),
        "dashboard": (
            "serving.tools.cli.system.dashboard:dashboard",
            "Print the link of the dashboard; on a cluster, forward its port.",
        ),
        "top": ("serving.tools.cli.system.top:top", "Display resource usage of revisions and nodes."),
        "doctor": ("serving.tools.cli.system.doctor:doctor", "Check the machine or the cluster, and the system on it."),
        "completion": ("serving.tools.cli.client.completion:completion", "Output shell completion code."),
        "install": (
            "serving.tools.cli.system.install:install",
            "Install the system on a Kubernetes cluster, or uninstall it.",
        ),
        "kubeconfig": ("serving.tools.cli.services.token:kubeconfig", "Print a kubeconfig, also for a user's token."),
        "backup": (
            "serving.tools.cli.system.backup:backup",
            "Save services, settings and secrets to a file.",
        ),
        "restore": ("serving.tools.cli.system.backup:restore", "Restore a backup into an empty state folder."),
        "bundle": (
            "serving.tools.cli.system.bundle:bundle",
            "Collect diagnostics for a bug report, without secrets.",
        ),
        "install-service": (
            "serving.tools.cli.system.service:install_service",
            "Run the system as a systemd service, from boot.",
        ),
        "config": ("serving.tools.cli.system.config:config", "Show, check and print settings."),
    },
    "Services": {
        "apply": ("serving.tools.cli.services.apply:apply", "Create or update resources from a file."),
        "deploy": ("serving.tools.cli.services.deploy:deploy", "Run a folder or an image as a service."),
        "dev": ("serving.tools.cli.services.dev:dev", "Run a folder while you change it, with its log and requests."),
        "image": (
            "serving.tools.cli.services.image:image",
            "Import, pull, list and remove the images of this machine.",
        ),
        "update": ("serving.tools.cli.services.update:update", "Update settings of a service."),
        "convert": (
            "serving.tools.cli.services.convert:convert",
            "Convert compose files to Knative manifests, and KEDA HTTP resources to ScaledWorkloads.",
        ),
        "adopt": (
            "serving.tools.cli.services.adopt:adopt",
            "Scale a Deployment or another workload by its requests.",
        ),
        "release": (
            "serving.tools.cli.services.adopt:release",
            "Stop scaling a workload that was adopted, and restore its replicas.",
        ),
        "get": ("serving.tools.cli.services.get:get", "Display one or many resources."),
        "describe": (
            "serving.tools.cli.services.describe:describe",
            "Show details of a service: state, traffic, pods, events.",
        ),
        "logs": ("serving.tools.cli.services.logs:logs", "Print the logs of services' pods."),
        "requests": (
            "serving.tools.cli.services.requests:requests",
            "List failed and slow requests of a service with their causes.",
        ),
        "stats": ("serving.tools.cli.services.stats:stats", "Show the history of a service: requests, latency, pods."),
        "compare": ("serving.tools.cli.services.compare:compare", "Compare two revisions of a service."),
        "cost": (
            "serving.tools.cli.services.cost:cost",
            "Show pod-hours of services, and compare with other policies.",
        ),
        "exec": ("serving.tools.cli.services.exec:execute", "Run a command in a pod of a service."),
        "invoke": ("serving.tools.cli.services.invoke:invoke", "Send a request to a service."),
        "volume": ("serving.tools.cli.services.volume:volume", "Create, list and delete volumes."),
        "url": ("serving.tools.cli.services.url:url", "Print the URL of a service."),
        "token": ("serving.tools.cli.services.token:token", "Manage tokens of private services and of API users."),
        "traffic": (
            "serving.tools.cli.services.traffic:traffic",
            "Split traffic between revisions, tag them, roll back.",
        ),
        "scale": ("serving.tools.cli.services.scale:scale", "Set the bounds for the number of pods of a service."),
        "wait": (
            "serving.tools.cli.services.waiting:wait",
            "Wait until a service is ready, deleted or scaled to zero.",
        ),
        "delete": ("serving.tools.cli.services.delete:delete", "Delete services with their revisions and pods."),
    },
    "Decisions": {
        "why": ("serving.tools.cli.decisions.why:why", "Explain the number of pods of a service or nodes of a group."),
        "nodegroups": (
            "serving.tools.cli.nodes.nodegroups:nodegroups",
            "Show node groups with their state and events.",
        ),
        "replay": (
            "serving.tools.cli.decisions.replay:replay",
            "Recompute logged decisions, to compare settings.",
        ),
        "simulate": (
            "serving.tools.cli.decisions.simulate:simulate",
            "Simulate a service or a recorded workload on a virtual clock.",
        ),
        "arena": (
            "serving.tools.cli.decisions.arena:arena",
            "Compare scaling policies over workloads and seeds on one page.",
        ),
        "policy": ("serving.tools.cli.decisions.policy:policy", "Test a custom scaling policy."),
        "tune": ("serving.tools.cli.decisions.tune:tune", "Recommend settings for a recorded workload and a budget."),
    },
}


class LazyGroup(click.Group):
    """A command group that loads a command on first use. A new command is one line in a section of its tables."""

    def __init__(self, *args: Any, sections: Mapping[str, Section] | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self._sections = dict(sections or {})
        self._places = {name: place for section in self._sections.values() for name, (place, _) in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted({*self._places, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; None for an unknown name."""
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
        """Find the command that the arguments name, also in words of kubectl and others; suggest one if unknown."""
        try:
            name, command, words = super().resolve_command(ctx, args)
        except click.UsageError as error:
            commands = self.list_commands(ctx)
            message, answer = error.message, ""
            if commands == sorted(self._places):
                same = command_of(args, now_s=time.time())
                if same is not None:
                    click.echo(f"running serving {' '.join(same)}", err=True)
                    return self.resolve_command(ctx, same)
                answer = suggestion_of(args) or _kind_answer(args)
            near = [f"serving {answer}"] if answer else _near(args[0] if args else "", commands)
            message = message.partition(" Did you mean")[0]
            if not near:
                raise click.UsageError(f"{message} `{ctx.command_path} --help` lists the commands.", ctx) from None
            raise click.UsageError(f"{message} Did you mean {' or '.join(near)}?", ctx) from None
        assert command is not None
        _refuse_empty(command, words, ctx)
        return name, command, words

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help's sections from the tables, without importing the commands."""
        del ctx
        width = max(map(len, self._places), default=0)
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in section.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Run the command; an unexpected error becomes one line."""
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            raise _in_plain_words(error) from None
        except click.NoSuchOption as error:
            raise _with_answer(error) from None
        except click.UsageError as error:
            raise _with_commands(error, self) from None
        except KeyboardInterrupt:
            sys.exit(_EXIT_INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # the outermost frame of the command line
            if os.environ.get(_TRACEBACK):
                raise
            _end_with(error)


def _in_plain_words(error: click.BadParameter) -> click.BadParameter:
    """The error, without click's terms for numbers."""
    message = error.message
    for words, plain in _CLICK_NUMBERS.items():
        message = message.replace(words, plain)
    return error if message == error.message else click.BadParameter(message, error.ctx, error.param, error.param_hint)


def _with_answer(error: click.NoSuchOption) -> click.UsageError:
    """Add advice to the error for an unknown option: the equivalent option or command, or how to list the options."""
    command = error.ctx.info_name if error.ctx else ""
    if error.option_name[1:].isdigit():
        return click.UsageError(f"{error.option_name} is not an option; expected a number of 0 or more", error.ctx)
    answer = OPTIONS.get(error.option_name, "") if command in _WITH_OPTIONS else ""
    near = [option for option in error.possibilities or () if _is_near(option, error.option_name)]
    if near and not answer:
        return click.NoSuchOption(error.option_name, possibilities=near, ctx=error.ctx)
    use = "use " if answer.startswith(("-", "serving ")) else ""
    answer = answer or f"`{error.ctx.command_path if error.ctx else 'serving'} --help` lists the options"
    return click.UsageError(f"No such option: {error.option_name}; {use}{answer}", error.ctx)


def _refuse_empty(command: click.Command, words: list[str], outer: click.Context) -> None:
    """Raise ``BadParameter`` for an empty argument or value of an option, usually of an unset shell variable.

    An empty name would select all objects, an empty path the present folder. Options that accept one have the
    type ``MAY_BE_EMPTY``.
    """
    if not any(not word or word.endswith("=") for word in words):
        return
    context = click.Context(command, outer, info_name=command.name, **command.context_settings)
    if isinstance(command, click.Group):
        inner = command.get_command(context, words[0])
        if inner is not None:
            _refuse_empty(inner, words[1:], context)
        return
    values: dict[str, Any] = {}
    with contextlib.suppress(click.UsageError):
        values, _, _ = command.make_parser(context).parse_args([*words])
    for parameter in command.params:
        value = values.get(parameter.name or "")
        is_empty = value == "" or (isinstance(value, list | tuple) and "" in value)
        is_text = parameter.type is click.STRING or isinstance(parameter.type, click.Path)
        if is_empty and is_text:
            raise click.BadParameter(
                "it is empty; expected a value. Is a variable of the shell not set?", context, parameter
            )


def _near(word: str, commands: list[str]) -> list[str]:
    """The commands that resemble a word, by name or by the words of other tools."""
    nearest = difflib.get_close_matches(word, [*commands, *RUNS, *ANSWERS], n=1)
    if nearest and nearest[0] not in commands:
        return [f"serving {suggestion_of(nearest[0].split())}"]
    return difflib.get_close_matches(word, commands)


def _is_near(option: str, typed: str) -> bool:
    """Whether an option is similar enough to be suggested. The dashes at the beginning are not compared.

    Otherwise --label and --help would be similar.
    """
    return difflib.SequenceMatcher(None, option.lstrip("-"), typed.lstrip("-")).ratio() >= _NEAR


def _with_commands(error: click.UsageError, outer: click.Group) -> click.UsageError:
    """The error, with the known subcommands if the subcommand is unknown, or the arguments if there is one too many.

    Other errors are returned unchanged.
    """
    context = error.ctx
    if context is not None and error.message.startswith(_CLICK_EXTRA) and error.message.endswith(")"):
        pieces = [piece for piece in context.command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
        return click.UsageError(f"{error.message}; expected {' '.join(pieces) or 'options only'}", context)
    group = context.command if context else None
    is_unknown = error.message.startswith(_CLICK_NO_COMMAND)
    if context is None or group is outer or not isinstance(group, click.Group) or not is_unknown:
        return error
    known = ", ".join(group.list_commands(context))
    return click.UsageError(f"{error.message} `serving {group.name}` has {known}.", context)


def _kind_answer(args: list[str]) -> str:
    """The command (without "serving") that lists a kind such as ConfigMaps; "" for an unknown kind."""
    # Imported here so that the help does not wait for the import.
    from serving.core.model.errors import InvalidValue  # noqa: PLC0415 - as above
    from serving.tools.cli.client.resources import kind_named  # noqa: PLC0415 - as said

    word = args[0] if args else ""
    try:
        kind = kind_named(word)
    except InvalidValue:
        return ""
    return f"get {word if kind.plural != word.lower() else kind.plural}"


def _end_with(error: Exception) -> NoReturn:
    """Print an error as one line and exit: the message of our own errors, type and text of any other.

    The exit code for invalid input is that of an invalid option.
    """
    # Only here, so that the help does not wait for the imports.
    from serving.core.model.errors import InvalidValue, NewerFormat, ServingError, SettingsError  # noqa: PLC0415 - as said
    from serving.tools.cli.client.output import print_aside  # noqa: PLC0415 - as said

    if isinstance(error, ServingError):
        print_aside(str(error))
        is_wrong = isinstance(error, SettingsError | InvalidValue) and not isinstance(error, NewerFormat)
        sys.exit(USAGE_EXIT if is_wrong else _EXIT_FAILED)
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
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        yield "; make room on this disk"
    if error.errno == errno.ENOENT and error.filename is not None:
        yield "; expected a path that exists"


@click.group(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="serving")
def main() -> None:
    """Request-driven serverless: HTTP traffic decides how many pods run."""
