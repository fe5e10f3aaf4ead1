"""Replays the decision log through the code that decided first, optionally with other numbers.

Input: lines of the log, and the fields of ``ScalingSpec`` to change. Output: for each line the decision then and the decision
now. Two ways:

- ``again`` starts from the recorded state: with the same numbers it must give the same decision, in every field.
- ``otherwise`` answers "what if": it continues from one decision to the next, once with the recorded numbers and once with the
  others, so that every difference is due to the numbers. Load and ready pods stay those of the record: it shows what would have
  been decided at each moment, not the consequences.

The classic algorithm and triggers keep points that are not recorded; their recorded proposals are used.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from serving.model.errors import UNREADABLE, InvalidValue
from serving.model.versions import DECISIONS, NEWER_DECISIONS, refuse_newer, refuse_newer_text
from serving.scaling.kpa.decide import KpaState
from serving.scaling.kpa.zero import GateState
from serving.scaling.scaler.deciders import Decided, KpaDecider
from serving.scaling.scaler.decision_history import DecisionRecord
from serving.scaling.scaler.scaler import DecisionInputs, ScalerOutcome, conclude
from serving.scaling.spec import ScalingSpec

# The record of one metric does not contain the load of the other.
_FIXED = {"metric"}
# Characters of a line that is none which its error shows.
_SHOWN_MAX = 60
_FIELDS = {field.name: field.type for field in msgspec.structs.fields(ScalingSpec) if field.name not in _FIXED}


class ReplayedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Two decisions at one moment of the record: ``first`` with the recorded numbers, ``second`` with the changed ones."""

    record: DecisionRecord
    first: ScalerOutcome
    second: ScalerOutcome

    @property
    def is_same(self) -> bool:
        """Whether both decisions have the same count, action and rule."""
        return self.first.gate == self.second.gate and self.first.is_like(self.second)


class _ReplayState(msgspec.Struct, frozen=True, kw_only=True):
    kpa: KpaState | None
    gate: GateState


def read_record(line: bytes | str) -> DecisionRecord:
    """Read a line of the log. Raises ``InvalidValue`` for any other text, ``NewerFormat`` for a newer line."""
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
    """The numbers with some replaced: ``max_scale`` or ``max-scale`` is "8". Raises ``InvalidValue``."""
    found: dict[str, Any] = {}
    for name, text in changes.items():
        field = name.replace("-", "_")
        if field not in _FIELDS:
            raise InvalidValue(text=name, expected=f"one of {', '.join(sorted(_FIELDS))}")
        try:
            found[field] = msgspec.convert(text, _FIELDS[field], strict=False)
        except msgspec.ValidationError as error:
            raise InvalidValue(text=f"{name}={text}", expected=str(error)) from error
    return msgspec.structs.replace(spec, **found)


def again(record: DecisionRecord) -> ScalerOutcome:
    """Repeat the decision of a record from its inputs. Raises ``InvalidValue`` for numbers that no decision can have had."""
    inputs = record.entry.outcome.inputs
    return _decide(record, inputs)[1]


def otherwise(records: Iterable[DecisionRecord], changes: Mapping[str, str]) -> Iterator[ReplayedDecision]:
    """Repeat each decision with the recorded and the changed numbers; ``records`` are of one revision at a time.

    Raises ``InvalidValue`` for numbers that no decision can have had, such as a target of 0.
    """
    states: tuple[_ReplayState, _ReplayState] | None = None
    for record in records:
        inputs = record.entry.outcome.inputs
        if states is None or (inputs.kpa is None) != (states[0].kpa is None):
            states = (_ReplayState(kpa=inputs.kpa, gate=inputs.gate),) * 2
        others = changed_spec(inputs.spec, changes)
        first_state, first = _decide(record, _with(inputs, states[0], inputs.spec))
        second_state, second = _decide(record, _with(inputs, states[1], others))
        states = (first_state, second_state)
        yield ReplayedDecision(record=record, first=first, second=second)


def _with(inputs: DecisionInputs, state: _ReplayState, spec: ScalingSpec) -> DecisionInputs:
    return msgspec.structs.replace(inputs, kpa=state.kpa, gate=state.gate, spec=spec)


def _decide(record: DecisionRecord, inputs: DecisionInputs) -> tuple[_ReplayState, ScalerOutcome]:
    try:
        kpa, decided = _decided(record, inputs)
        gate, outcome = conclude(inputs, decided)
    except (ArithmeticError, LookupError, ValueError) as error:
        text = f"the record of {record.revision} at {inputs.at_s:.3f}"
        raise InvalidValue(text=text, expected=f"one that can be decided again: {error}") from error
    return _ReplayState(kpa=kpa, gate=gate), outcome


def _decided(record: DecisionRecord, inputs: DecisionInputs) -> tuple[KpaState | None, Decided]:
    if inputs.kpa is None or record.windows is None:
        return inputs.kpa, record.entry.outcome.decided
    decider = KpaDecider.restored(inputs.spec, quirks=inputs.quirks, state=inputs.kpa, windows=record.windows)
    decided = decider.decide(inputs.spec, inputs.inside, ready_count=inputs.facts.ready_count, now_s=inputs.at_s)
    return decider.state, decided
