"""Other people's requests, sent all the while from threads of their own: what an uncontrolled server is busy with.

Promises that there is always a stranger in flight for each thread while the context lasts, and counts those that were
answered, so that a comparison can show that it was not made on an idle server. A stranger that fails ends the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

from determinism.compare.live_surface import Question
from projection.engine import Tokenizer
from projection.prompt import render_projection

SendStranger = Callable[[int], object]
"""Sends stranger number i and waits for the answer."""


class Traffic:
    """What the strangers have done."""

    def __init__(self, send: SendStranger) -> None:
        self._send = send
        self._numbers = count()
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._num_answered = 0

    @property
    def num_answered(self) -> int:
        return self._num_answered

    def end(self) -> None:
        """Let no further stranger begin."""
        self._ends.set()

    def run(self, has_begun: threading.Event) -> None:
        """Send strangers one after the other until the end."""
        while not self._ends.is_set():
            with self._lock:
                number = next(self._numbers)
            has_begun.set()
            self._send(number)
            with self._lock:
                self._num_answered += 1


@contextmanager
def strangers(send: SendStranger | None, num_threads: int) -> Iterator[Traffic]:
    """Keep that many strangers in flight while the context lasts; the last ones are waited for. send: None sends none.

    Raises:
        DpmError: a stranger's call failed.
    """
    traffic = Traffic(send or (lambda _number: None))
    if send is None or num_threads == 0:
        yield traffic
        return
    with ThreadPoolExecutor(num_threads) as threads:
        begun = [threading.Event() for _ in range(num_threads)]
        running: list[Future[None]] = [threads.submit(traffic.run, event) for event in begun]
        try:
            for event in begun:
                event.wait()
            yield traffic
        finally:
            traffic.end()
    for future in running:
        future.result()


def stranger_prompt(tokenizer: Tokenizer, questions: Sequence[Question], number: int) -> tuple[list[int], int]:
    """Prompt and max_tokens of stranger number i: some of the first events of a case, another length each time."""
    question = questions[number % len(questions)]
    num_events = 2 + (5 * number) % (len(question.events) - 1)
    prompt = render_projection(tokenizer, question.events[:num_events], question.task, 600 + number % 400)
    return prompt, 16 + 8 * (number % 8)
