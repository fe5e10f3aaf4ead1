import re

import click
import pytest

from serving.tools.cli.main import main
from serving.tools.cli.words import ANSWERS, OPTIONS, RUNS, command_of, page, suggestion_of
from tests.tidy.sources import ROOT

COMMANDS = main.list_commands(click.Context(main))


def test_words_page_is_generated_from_the_tables() -> None:
    expected = "\n".join(page()) + "\n"
    assert (ROOT / "docs" / "words.md").read_text() == expected, "run python -m serving.tools.cli.words > docs/words.md"


def test_each_word_maps_to_a_command_and_is_no_command_itself() -> None:
    assert {answer.split()[0].strip(",") for answer in (*RUNS.values(), *ANSWERS.values())} <= {*COMMANDS}
    assert not {*RUNS, *ANSWERS} & {*COMMANDS}
    assert not RUNS.keys() & ANSWERS.keys()


def test_option_suggestions_name_existing_commands() -> None:
    named = {word for answer in OPTIONS.values() for word in re.findall(r"serving (\w+)", answer)}
    assert named <= {*COMMANDS}


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("ps -A", "get -A"),
        ("rollout restart deployment/shop", "update shop --annotate client.knative.dev/updateTimestamp=7"),
        ("rollout status", "wait"),
        ("create -f x", "apply -f x"),
        ("services update-traffic shop --to-latest", "traffic shop --to-latest"),
    ],
)
def test_words_of_other_tools_translate_to_a_command(typed: str, command: str) -> None:
    assert command_of(typed.split(), now_s=7.5) == command.split()


# Common verbs of each tool.
VERBS = """
kubectl: annotate api-resources api-versions apply attach auth autoscale cluster-info completion config cordon cp create debug delete describe diff
drain edit events exec explain expose get kustomize label logs patch port-forward proxy replace rollout rollout+restart rollout+undo
rollout+status rollout+history rollout+pause rollout+resume run scale set set+image set+env taint top uncordon version wait
kn: service service+create service+update service+list service+describe service+delete service+apply service+export service+import service+wait
revision+list revision+describe revision+delete route+list domain+list domain+create version
gcloud: run+deploy services services+list services+describe services+update services+delete services+update-traffic services+replace
services+logs+read services+logs+tail services+proxy revisions+list revisions+describe revisions+delete domain-mappings+list auth
compose: attach build config cp create down events exec export images kill logs ls port ps pull restart rm run scale start stats stop top up
version volumes wait watch inspect tail
"""


def test_each_verb_of_other_tools_is_a_command_or_has_a_suggestion() -> None:
    verbs = [words.split("+") for words in VERBS.split() if not words.endswith(":")]
    assert [words for words in verbs if words[0] not in COMMANDS and not suggestion_of(words)] == []


def test_untranslated_words_have_a_suggestion_or_none() -> None:
    assert command_of(["create"], now_s=0) is None
    assert suggestion_of(["rollout", "frob"]) == ANSWERS["rollout"]
    assert (suggestion_of([]), suggestion_of(["frob"])) == ("", "")
