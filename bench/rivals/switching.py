"""Switches between forecasts of calls a minute, after FeMux.

Source: FeMux, EuroSys 2026 (ubc-cirrus-lab/femux): the past of an app is divided into blocks, each block gets the
forecaster that is best for its kind, and "best" is a cost of cold starts and idle memory. Left out: the classifier of
blocks, trained ahead on features such as periodicity and density. Here the forecaster of a block is the one with the
lowest cost over the block before. A forecast keeps one pod, because counts under load are Knative's.
Its live run has 90 % fewer cold requests at 41 % more memory than Knative; docs/benchmarks.md has similar figures for a
high worth of a cold start.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bench.rivals.fourier import AHEAD_MINUTES, Calls, MinuteForecast, continued
from serving.core.scaling.adaptive.gaps import KeepWindow

_BLOCK_MINUTES = 60
_MINUTE_S = 60.0
_SMOOTHING = 0.3

Forecast = Callable[[Calls, int], Calls]


def mean(past: Calls, ahead: int) -> Calls:
    """The mean of the last hour."""
    return np.full(ahead, past[-_BLOCK_MINUTES:].mean())


def smoothed(past: Calls, ahead: int) -> Calls:
    """The mean with weights that fall by 30 % a minute."""
    recent = past[-_BLOCK_MINUTES:]
    weights = (1.0 - _SMOOTHING) ** np.arange(len(recent))[::-1]
    return np.full(ahead, (recent * weights).sum() / weights.sum())


def markov(past: Calls, ahead: int) -> Calls:
    """The probability of calls in a minute, by whether the minute before had calls."""
    is_active = past > 0
    rates = [
        (is_active[1:][is_active[:-1] == before].sum() + 0.5) / ((is_active[:-1] == before).sum() + 1.0)
        for before in (False, True)
    ]
    active, forecast = float(is_active[-1]), []
    for _ in range(ahead):
        active = rates[0] * (1.0 - active) + rates[1] * active
        forecast.append(active)
    return np.array(forecast)


FORECASTS: Sequence[Forecast] = (continued, mean, smoothed, markov)


class ForecastSwitch(MinuteForecast):
    """One revision. A pod is ready in minutes with ``threshold`` calls; an avoided cold start is worth ``worth_s``."""

    def __init__(self, *arguments: object, threshold: float = 0.25, worth_s: float = 120.0, **more: object) -> None:
        super().__init__(*arguments, **more)
        self._threshold, self._worth_s = threshold, worth_s
        self._forecast, self._block = FORECASTS[0], 0

    def windows(self) -> list[KeepWindow]:
        """The minutes of the next hour for which the block's forecaster expects calls."""
        past = self.past()
        if (block := max(self._calls) // _BLOCK_MINUTES) != self._block:
            self._block = block
            self._forecast = min(FORECASTS, key=lambda forecast: self.cost_s(forecast, past))
        is_ready = self._forecast(past, AHEAD_MINUTES) >= self._threshold
        windows = self.kept(is_ready)
        return [KeepWindow(0.0, windows[0].to_s), *windows[1:]] if is_ready[0] else windows

    def cost_s(self, forecast: Forecast, past: Calls) -> float:
        """Pod-seconds of the last block, if each of its minutes had been forecast in the minute before."""
        cost_s = 0.0
        for minute in range(max(1, len(past) - _BLOCK_MINUTES), len(past)):
            if forecast(past[:minute], 1)[0] >= self._threshold:
                cost_s += _MINUTE_S
            elif past[minute]:
                cost_s += self._worth_s
        return cost_s
