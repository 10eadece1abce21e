"""The determinism self-test of a server: its known answers again, under changed circumstances, bit for bit.

After the model of FIPS 140: a server starts in SELF_TEST, becomes APPROVED when every known answer came back, and goes
to ERROR at the first that did not, where it stays until it is started again. Nothing to compare is a failure. Asks
through a function; knows neither HTTP nor vLLM, only the fields of a completion request and of its answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inference.enrolment import Enrolment, KnownAnswer
from projection.errors import DpmError, VerificationError
from projection.replay import first_other

State = Literal["SELF_TEST", "APPROVED", "ERROR"]
STATES: tuple[State, ...] = ("SELF_TEST", "APPROVED", "ERROR")
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""A completion request without its decoding fields, to the answer's JSON."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a prompt was answered with: token ids, and log-probabilities as hexadecimal floats."""

    token_ids: tuple[int, ...]
    logprobs: tuple[str, ...]


class SelfTest:
    """A server's state, and the test that decides it."""

    def __init__(self, enrolment: Enrolment | None, ask: Ask, max_num_seqs: int) -> None:
        self._enrolment = enrolment
        self._max_num_seqs = max_num_seqs
        self._ask = ask
        self._lock = asyncio.Lock()
        self.state: State = "SELF_TEST"
        self.reason = "the self-test has not ended yet" if enrolment else "this server has no known answers"
        self.num_passed = 0
        self.num_failed = 0

    async def run(self) -> None:
        """Run the test and settle the state; without an enrolment there is nothing to settle it with."""
        if self._enrolment is None:
            return
        async with self._lock:
            try:
                await check_known_answers(self._enrolment.known_answers, self._ask, self._max_num_seqs)
            except DpmError as exc:
                self.num_failed += 1
                self.state, self.reason = "ERROR", exc.message
                logger.error("determinism self-test failed: %s", exc.message)
                return
            self.num_passed += 1
            if self.state == "SELF_TEST":
                self.state, self.reason = "APPROVED", "every known answer came back bit for bit"

    def document(self) -> dict[str, Any]:
        """State, reason and counts, as JSON."""
        return {
            "state": self.state,
            "reason": self.reason,
            "num_passed": self.num_passed,
            "num_failed": self.num_failed,
        }

    def metrics(self) -> Iterator[str]:
        """Lines of Prometheus text."""
        for state in STATES:
            yield f'dpm_self_test_state{{state="{state}"}} {int(state == self.state)}'
        yield f'dpm_self_tests_total{{result="passed"}} {self.num_passed}'
        yield f'dpm_self_tests_total{{result="failed"}} {self.num_failed}'


async def check_known_answers(known: Sequence[KnownAnswer], ask: Ask, max_num_seqs: int) -> None:
    """Ask for every known answer alone, again, in batches up to the largest, and in one forward pass.

    Each is first asked for under a cache salt that nobody has used, hence with a cold prefix cache, then a warm one.

    Raises:
        VerificationError: an answer differs, or there is none to compare. RequestError: the server refused.
    """
    if not known:
        raise VerificationError("the enrolment holds no known answer: there is nothing to compare")
    salt = secrets.token_hex(16)
    for circumstance in ("alone", "alone, again"):
        for index, answer in enumerate(known):
            said = await generate(answer.prompt_token_ids, len(answer.token_ids), ask, salt)
            _compare(circumstance, index, answer, said)
    for name, order in _batches(len(known), max_num_seqs):
        salt = secrets.token_hex(16)
        told = await asyncio.gather(
            *(generate(known[index].prompt_token_ids, len(known[index].token_ids), ask, salt) for index in order)
        )
        for index, outcome in zip(order, told, strict=True):
            _compare(name, index, known[index], outcome)
    for index, answer in enumerate(known):
        _compare("in one forward pass", index, answer, await prefill(answer, ask))


def _batches(num_known: int, max_num_seqs: int) -> Iterator[tuple[str, list[int]]]:
    """All together, each once first and each once last; then as many as the server takes at once."""
    forward = list(range(num_known))
    yield "in a batch", forward
    yield "in a batch the other way round", forward[::-1]
    yield f"in a batch of {max_num_seqs}", [number % num_known for number in range(max_num_seqs)]


def _compare(circumstance: str, index: int, known: KnownAnswer, said: Outcome) -> None:
    for what, expected, found in (
        ("token", known.token_ids, said.token_ids),
        ("log-probability", known.logprobs, said.logprobs),
    ):
        at = first_other(expected, found)
        if at is not None:
            raise VerificationError(
                f"known answer {index} {circumstance}: {what} {at} is {_at(found, at)}, but was {_at(expected, at)} "
                "when this engine was enrolled",
                known_answer=index,
                circumstance=circumstance,
                position=at,
            )


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else "missing"


async def generate(prompt_token_ids: Sequence[int], num_tokens: int, ask: Ask, cache_salt: str) -> Outcome:
    """Exactly that many tokens, whatever they are. cache_salt: whose prefix cache may be read."""
    answer = await ask(
        {
            "prompt": list(prompt_token_ids),
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "cache_salt": cache_salt,
        }
    )
    try:
        choice = answer["choices"][0]
        logprobs = tuple(float(value).hex() for value in choice["logprobs"]["token_logprobs"])
        return Outcome(tuple(choice["token_ids"]), logprobs)
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise VerificationError(f"the server's answer has not the form of a completion: {exc!r}") from exc


async def prefill(known: KnownAnswer, ask: Ask) -> Outcome:
    """The known tokens read as a prompt: what one forward pass says of each."""
    prompt = [*known.prompt_token_ids, *known.token_ids]
    answer = await ask({"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 1})
    try:
        rows = answer["choices"][0]["prompt_logprobs"][len(known.prompt_token_ids) :]
        pairs = list(zip(rows, known.token_ids, strict=True))
        best = tuple(min(int(token_id) for token_id, entry in row.items() if entry["rank"] == 1) for row, _ in pairs)
        return Outcome(best, tuple(float(row[str(token_id)]["logprob"]).hex() for row, token_id in pairs))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as exc:
        raise VerificationError(f"the server's answer has not the form of scored prompt tokens: {exc!r}") from exc
