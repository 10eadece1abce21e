"""Calls to a live API, counted: how many, how many again, how long was waited, how many tokens, and what they cost.

Promises that no call is made beyond the limit that was set, that every attempt counts (a retry is a call), and that the
price is the one the caller stated. The SDKs' own retries are off: what is sent is what is counted here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal

from projection.engine import FinishReason
from projection.errors import DpmError, RequestError

FIRST_WAIT_S = 1.0
MAX_WAIT_S = 60.0


class CallLimitError(RequestError):
    """The run has made as many calls as it may; `fields["max_calls"]` is how many."""


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """One answer as the provider gave it.

    model: who says it answered. fingerprint: of the back end, where one was returned. input_tokens, output_tokens: as
    the provider counts and bills them. logprobs: of its own tokens, natural log; empty where none were asked for.
    """

    text: str
    finish_reason: FinishReason
    stop_reason: str
    model: str
    fingerprint: str | None
    input_tokens: int
    output_tokens: int
    logprobs: tuple[float, ...]
    wall_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that gave no answer. retry_after_s: what the server asked for."""

    error: DpmError
    may_pass: bool = False
    is_rate_limit: bool = False
    retry_after_s: float | None = None


Attempt = Callable[[], LiveAnswer | Failure]
Wait = Callable[[float], None]
"""Lets that many seconds pass."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in the caller's currency. Stated by the caller: none are built in."""

    input: Decimal
    output: Decimal


@dataclass(frozen=True, slots=True)
class CallCounts:
    """What a run has asked for. num_calls: attempts, retries among them. waited_s: before retries."""

    num_calls: int = 0
    num_answers: int = 0
    num_retries: int = 0
    num_rate_limits: int = 0
    waited_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0

    def cost(self, prices: Prices) -> Decimal:
        """Of the tokens of the answers; an attempt that failed may be billed too, which nobody told us."""
        return (prices.input * self.input_tokens + prices.output * self.output_tokens) / 1_000_000


class CallMeter:
    """Counts the calls of one run, from any number of threads, and refuses those beyond its limit."""

    def __init__(self, max_calls: int) -> None:
        self.max_calls = max_calls
        self._counts = CallCounts()
        self._lock = threading.Lock()

    @property
    def counts(self) -> CallCounts:
        return self._counts

    def begin(self, after: Failure | None = None) -> None:
        """Count an attempt that is about to be made; `after` is what the one before it met.

        Raises:
            CallLimitError: it would be one too many.
        """
        with self._lock:
            if self._counts.num_calls >= self.max_calls:
                met = "" if after is None else f"; the last attempt failed: {after.error}"
                raise CallLimitError(
                    f"the limit of {self.max_calls} calls is reached, retries included{met}; what is finished is kept. "
                    "Raise --max-calls to go on",
                    max_calls=self.max_calls,
                )
            self._counts = replace(self._counts, num_calls=self._counts.num_calls + 1)

    def answered(self, answer: LiveAnswer) -> None:
        with self._lock:
            self._counts = replace(
                self._counts,
                num_answers=self._counts.num_answers + 1,
                input_tokens=self._counts.input_tokens + answer.input_tokens,
                output_tokens=self._counts.output_tokens + answer.output_tokens,
            )

    def failed(self, failure: Failure) -> None:
        with self._lock:
            self._counts = replace(self._counts, num_rate_limits=self._counts.num_rate_limits + failure.is_rate_limit)

    def retried(self, waited_s: float) -> None:
        with self._lock:
            self._counts = replace(
                self._counts,
                num_retries=self._counts.num_retries + 1,
                waited_s=self._counts.waited_s + waited_s,
            )


def call(attempt: Attempt, meter: CallMeter, max_retries: int, wait: Wait = time.sleep) -> LiveAnswer:
    """The answer, after as many attempts as it takes and may take.

    Raises:
        CallLimitError: the run has no call left.
        DpmError: of the last attempt.
    """
    num_retries = 0
    met: Failure | None = None
    while True:
        meter.begin(after=met)
        outcome = attempt()
        if isinstance(outcome, LiveAnswer):
            meter.answered(outcome)
            return outcome
        meter.failed(outcome)
        wait_s = _wait_s(outcome, num_retries)
        if not outcome.may_pass or num_retries == max_retries or wait_s > MAX_WAIT_S:
            raise outcome.error
        wait(wait_s)
        meter.retried(wait_s)
        num_retries, met = num_retries + 1, outcome


def _wait_s(failure: Failure, num_retries: int) -> float:
    """What the server asked for, else twice as long each time."""
    if failure.retry_after_s is not None:
        return failure.retry_after_s
    return min(FIRST_WAIT_S * 2.0**num_retries, MAX_WAIT_S)
