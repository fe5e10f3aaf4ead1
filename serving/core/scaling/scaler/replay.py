"""Replays the decision log through the code of live decisions, optionally with changed scaling numbers.

Input: lines of the log, and the fields of ``ScalingSpec`` to change. Output: for each line the recorded and the
repeated decision. There are two ways:

- ``again`` starts from the recorded state: with the same numbers it must give the same decision, in every field.
- ``otherwise`` shows the effect of other numbers: it continues from one decision to the next, once with the recorded
  numbers and once with the changed ones. Load and ready pods stay as recorded, so the result shows each decision, but
  not its consequences.

The log does not contain the points of the classic algorithm and of triggers, so their recorded proposals are used.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from serving.core.model.errors import UNREADABLE, InvalidValue
from serving.core.model.nodata import NoData
from serving.core.model.versions import DECISIONS, NEWER_DECISIONS, refuse_newer, refuse_newer_text
from serving.core.scaling.decision.policy import Advice, PolicyView, RevisionPolicy
from serving.core.scaling.decision.records import DecisionInputs, ScalerOutcome
from serving.core.scaling.decision.step import RevisionState, StepInputs, step
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.scaler.decision_history import DecisionRecord
from serving.core.scaling.scaler.windows import RevisionWindows
from serving.core.scaling.spec import ScalingSpec

# A record lacks the load of other metrics, and the seconds that other policies observe.
_FIXED = {"metric", "policy"}
# Characters of an invalid line shown in its error.
_SHOWN_MAX = 60
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(ScalingSpec) if field.name not in _FIXED}


class ReplayedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Two decisions at one recorded moment: ``first`` with the recorded numbers, ``second`` with the changed ones."""

    record: DecisionRecord
    first: ScalerOutcome
    second: ScalerOutcome

    @property
    def is_same(self) -> bool:
        """Whether the decisions have the same count, action and rule."""
        return self.first.gate == self.second.gate and self.first.is_like(self.second)


class _RecordedPolicy(RevisionPolicy):
    """A policy that repeats recorded advice."""

    def __init__(self, advice: Advice) -> None:
        super().__init__()
        self._advice = advice

    def propose(self, view: PolicyView) -> Advice:
        """The recorded advice."""
        del view
        return self._advice


def read_record(line: bytes | str) -> DecisionRecord:
    """Parse a line of the log. Raises ``InvalidValue`` for invalid text, ``NewerFormat`` for a newer format."""
    what = "a line of the decision log"
    try:
        record = msgspec.json.decode(line, type=DecisionRecord)
    except UNREADABLE as error:
        text = line if isinstance(line, str) else line.decode(errors="replace")
        refuse_newer_text(what, text.encode(), known=DECISIONS, action=NEWER_DECISIONS)
        raise InvalidValue(text=text.strip()[:_SHOWN_MAX], expected=f"{what}: {error}") from error
    refuse_newer(what, record.version, known=DECISIONS, action=NEWER_DECISIONS)
    return record


def changed_spec(spec: ScalingSpec, changes: Mapping[str, str]) -> ScalingSpec:
    """The scaling numbers with replacements, such as ``max_scale`` or ``max-scale``: "8". Raises ``InvalidValue``."""
    changed: dict[str, Any] = {}
    for name, text in changes.items():
        field = name.replace("-", "_")
        if field not in _FIELDS:
            raise InvalidValue(text=name, expected=f"one of {', '.join(sorted(_FIELDS))}")
        try:
            changed[field] = msgspec.convert(text, _FIELDS[field], strict=False)
        except msgspec.ValidationError as error:
            raise InvalidValue(text=f"{name}={text}", expected=str(error)) from error
    return msgspec.structs.replace(spec, **changed)


def again(record: DecisionRecord) -> ScalerOutcome:
    """Repeat a recorded decision from its inputs. Raises ``InvalidValue`` for impossible numbers."""
    inputs = record.entry.outcome.inputs
    return _step(record, RevisionState(kpa=inputs.kpa, gate=inputs.gate), inputs.spec)[1]


def otherwise(records: Iterable[DecisionRecord], changes: Mapping[str, str]) -> Iterator[ReplayedDecision]:
    """Repeat each decision with the recorded and the changed numbers; ``records`` are of one revision.

    Raises ``InvalidValue`` for numbers that no decision can have, such as a target of 0.
    """
    states: tuple[RevisionState, RevisionState] | None = None
    for record in records:
        inputs = record.entry.outcome.inputs
        if states is None or (inputs.kpa is None) != (states[0].kpa is None):
            states = (RevisionState(kpa=inputs.kpa, gate=inputs.gate),) * 2
        others = changed_spec(inputs.spec, changes)
        first_state, first = _step(record, states[0], inputs.spec)
        second_state, second = _step(record, states[1], others)
        states = (first_state, second_state)
        yield ReplayedDecision(record=record, first=first, second=second)


def _step(record: DecisionRecord, state: RevisionState, spec: ScalingSpec) -> tuple[RevisionState, ScalerOutcome]:
    """Decide with a record's inputs, from the given state and numbers; return the next state and the outcome.

    Raises ``InvalidValue``.
    """
    inputs = record.entry.outcome.inputs
    is_recorded = state.kpa is None or record.windows is None
    try:
        again = StepInputs(
            at_s=inputs.at_s,
            cause=inputs.cause,
            view=inputs.view,
            in_flight=inputs.in_flight,
            observed=NoData(missing="windows") if is_recorded else _observed(record, inputs, spec),
            classic=record.entry.outcome.decided if is_recorded else None,
            # Proposals of further metrics and of loading pods are already among the recorded ones.
            proposals=inputs.proposals,
            spec=msgspec.structs.replace(spec, further_metrics=()),
            quirks=inputs.quirks,
            learnt=inputs.learnt,
            slo=inputs.slo,
        )
        allowance = inputs.allowance
        limit = None if allowance is None else lambda _: allowance
        next_state, outcome = step(state, again, _RecordedPolicy(inputs.advice), limit=limit)
    except (ArithmeticError, LookupError, ValueError) as error:
        text = f"the record of {record.revision} at {inputs.at_s:.3f}"
        raise InvalidValue(text=text, expected=f"one that can be decided again: {error}") from error
    return next_state, msgspec.structs.replace(outcome, inputs=msgspec.structs.replace(outcome.inputs, spec=spec))


def _observed(record: DecisionRecord, inputs: DecisionInputs, spec: ScalingSpec) -> Observation | NoData:
    """The averages of the recorded windows, resized to the widths in ``spec``.

    A wider stable window has only the recorded seconds. A window restarts after a silence of its width; the contents
    do not tell silence from zeros, so a narrower window counts such a silence as zeros.
    """
    assert record.windows is not None
    windows = RevisionWindows(msgspec.structs.replace(spec, further_metrics=()), quirks=inputs.quirks)
    windows.restore(record.windows)
    return windows.query(inputs.at_s)
