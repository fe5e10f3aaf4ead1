"""The words of kubectl, kn, gcloud run and docker compose: the equivalent command, or an answer, for each.

These tables supply the suggestions and the page docs/words.md, the output of ``python -m serving.tools.cli.words``. To
add a word, add a line.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

RUNS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ps", "list", "ls", "service list", "services list"), "get"),
    **dict.fromkeys(("revision list", "revisions list"), "get revisions"),
    "events": "get events",
    "route list": "get routes",
    "domain list": "get domainmappings",
    **dict.fromkeys(("service describe", "services describe"), "describe"),
    **dict.fromkeys(("revision describe", "revisions describe"), "describe revision"),
    **dict.fromkeys(("service create", "services create", "run deploy"), "deploy"),
    **dict.fromkeys(("service update", "services update"), "update"),
    **dict.fromkeys(("service delete", "services delete"), "delete"),
    **dict.fromkeys(("service apply", "services replace", "create -f", "replace -f"), "apply -f"),
    "services update-traffic": "traffic",
    "service wait": "wait",
    **dict.fromkeys(("services logs read", "service logs read"), "logs"),
    **dict.fromkeys(("tail", "services logs tail", "service logs tail"), "logs --follow"),
    "inspect": "describe",
    "domain-mappings list": "get domainmappings",
    "rollout status": "wait NAME",
    **dict.fromkeys(("rollout undo", "rollback"), "traffic NAME --rollback"),
    **dict.fromkeys(("rollout restart", "restart"), "update NAME --annotate client.knative.dev/updateTimestamp=NOW"),
    "diff": "apply --dry-run",
    **dict.fromkeys(("curl", "call"), "invoke"),
}
"""Words that run a command. NAME stands for the next argument, NOW for the time; other arguments follow."""

ANSWERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("run", "create", "new", "start", "launch"), "deploy NAME FOLDER, or deploy NAME --image IMAGE"),
    **dict.fromkeys(("rm", "remove", "destroy", "undeploy", "kill"), "delete NAME"),
    **dict.fromkeys(("stop", "shutdown"), "down, or delete NAME"),
    **dict.fromkeys(("service", "services", "revision", "revisions"), "get services, or get revisions"),
    **dict.fromkeys(("service export", "services export"), "get services NAME -o yaml"),
    "export": "get services NAME -o yaml",
    "service import": "apply -f FILE",
    **dict.fromkeys(("revision delete", "revisions delete"), "delete revision/NAME"),
    "kustomize": "apply -f -",
    "domain": "get domainmappings, or apply -f FILE",
    "rollout": "wait NAME, traffic NAME --rollback, or why NAME",
    "rollout pause": "traffic NAME REVISION=100",
    "rollout resume": "traffic NAME --to-latest",
    **dict.fromkeys(("rollout history", "explain", "history"), "why NAME, or get revisions"),
    "route": "traffic NAME",
    "autoscale": "scale NAME --min 1 --max 5",
    "port-forward": "url NAME, or invoke NAME",
    **dict.fromkeys(("proxy", "expose", "port", "browse"), "url NAME"),
    "open": "url NAME, or dashboard",
    "cp": "exec NAME -- cat FILE, or volume create NAME",
    "debug": "exec NAME -- sh",
    "ssh": "exec -it NAME -- sh",
    "attach": "logs NAME -f",
    "watch": "get --watch",
    "edit": "update NAME, or apply -f FILE",
    "patch": "update NAME",
    "set": "update NAME",
    "set image": "update NAME --image IMAGE",
    **dict.fromkeys(("set env", "env", "config:set"), "update NAME -e KEY=VALUE"),
    "annotate": "update NAME --annotate KEY=VALUE",
    "label": "apply -f FILE",
    "replace": "apply -f FILE",
    **dict.fromkeys(("secret", "secrets"), "get secrets, or apply -f FILE"),
    "build": "deploy NAME FOLDER",
    "init": "deploy FOLDER",
    "reload": "up --reload",
    "images": "image list",
    "pull": "image pull NAME",
    "volumes": "volume list",
    **dict.fromkeys(("auth", "login"), "token create USER, or kubeconfig"),
    **dict.fromkeys(("api-resources", "api-versions"), "get --help"),
    **dict.fromkeys(("cluster-info", "info"), "status"),
    **dict.fromkeys(("cordon", "uncordon", "drain", "taint"), "nodegroups"),
}
"""Words with an answer: the command to use instead."""

OPTIONS: Final[Mapping[str, str]] = {
    "--source": "serving deploy NAME FOLDER",
    **dict.fromkeys(("--filename", "-f"), "serving apply -f FILE"),
    "--watch": "serving dev NAME FOLDER",
    **dict.fromkeys(("--min-instances", "--scale-min"), "--min COUNT"),
    **dict.fromkeys(("--max-instances", "--scale-max"), "--max COUNT"),
    **dict.fromkeys(("--replicas", "--scale"), "--min COUNT --max COUNT"),
    "--scale-window": "--window TIME",
    "--scale-target": "--target COUNT",
    **dict.fromkeys(("--set-env-vars", "--update-env-vars"), "-e NAME=VALUE, once for each variable"),
    **dict.fromkeys(("--set-secrets", "--update-secrets", "--env-from"), "--secret NAME=SECRET:KEY"),
    **dict.fromkeys(("--mount", "-v", "--add-volume"), "--volume NAME:/PATH"),
    **dict.fromkeys(("--limit", "--limits", "--request"), "--cpu CPU, --memory MEMORY"),
    **dict.fromkeys(("--cmd", "--arg", "--args", "--entrypoint"), "--command 'COMMAND ARGUMENTS'"),
    **dict.fromkeys(("--publish", "-p"), "leave it out: serving url NAME prints the URL"),
    "--name": "serving deploy NAME FOLDER",
    **dict.fromkeys(("--detach", "--restart"), "leave it out"),
    "--allow-unauthenticated": "leave it out: services are public",
    "--no-allow-unauthenticated": "--access private",
    **dict.fromkeys(("--region", "--platform", "--project", "--zone"), "leave it out"),
    **dict.fromkeys(("--ingress", "--cluster-local"), "serving url NAME --cluster-local, and --access private"),
    **dict.fromkeys(("--revision-name", "--revision-suffix", "--force"), "leave it out"),
    "--service-account": "serving apply -f FILE",
}
"""Options of other tools for `deploy`, `dev`, `scale` and `update`, with the equivalent."""


def command_of(typed: Sequence[str], *, now_s: float) -> list[str] | None:
    """The words of our command that does the same as the typed command of another tool; None if there is none.

    Example: "ps" is ["get"]. ``now_s`` replaces NOW in the table ``RUNS``.
    """
    words = _longest(typed, RUNS)
    if not words:
        return None
    rest = [*typed[len(words.split()) :]]
    command = RUNS[words].replace("NOW", str(int(now_s))).split()
    if "NAME" in command and rest and not rest[0].startswith("-"):
        # kubectl also accepts ksvc/shop.
        command[command.index("NAME")] = rest.pop(0).rpartition("/")[2]
    return [word for word in command if word != "NAME"] + rest


def suggestion_of(typed: Sequence[str]) -> str:
    """The command to suggest, without "serving", for the typed command of another tool; "" if there is none."""
    table = {**RUNS, **ANSWERS}
    words = _longest(typed, table)
    return table[words] if words else ""


def _longest(typed: Sequence[str], table: Mapping[str, str]) -> str:
    return next((words for count in (3, 2, 1) if (words := " ".join(typed[:count])) in table), "")


def page() -> Iterator[str]:
    """The lines of docs/words.md."""
    yield from (
        "# Words you know",
        "",
        "This page maps commands of kubectl, kn, gcloud run and docker compose to commands of `serving`. If you type such a command after `serving`, it prints its equivalent.",
    )
    for title, head, table in (
        ("Words that run a command", "runs", RUNS),
        ("Words with an answer", "use", ANSWERS),
        ("Options of deploy, dev, scale and update", "use", OPTIONS),
    ):
        # No spaces around the bars, because a test counts the words of all pages.
        yield from ("", f"## {title}", "", f"|you type|{head}|", "|---|---|")
        rows: dict[str, list[str]] = {}
        for words, answer in table.items():
            # "services list" means "service list".
            if words.replace("services ", "service ").replace("revisions ", "revision ") == words:
                rows.setdefault(answer, []).append(f"`{words}`")
        yield from (f"|{', '.join(words)}|{answer}|" for answer, words in rows.items() if words)


if __name__ == "__main__":
    print("\n".join(page()))
