"""Where a check is held: the endpoint under test, what was opened beside it, and the company that requests keep.

Promises that an endpoint is asked alone once for each request, so that every check compares with the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice

from determinism.cell import Observed
from determinism.endpoints.endpoint import Endpoint, Request
from determinism.surface import Surface
from projection.engine import Completion

ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is asked.

    max_tokens: of each answer. batch_sizes: of the check of that name, even; width: requests in the batches of all
    others, odd: so that a fault of pairs and one of places are each found by one check only. num_comparisons: at
    least, of each check, over all its workloads.
    """

    max_tokens: int
    batch_sizes: tuple[int, ...]
    width: int
    num_comparisons: int = 1


@dataclass(frozen=True, slots=True)
class Arena:
    """What a check may use.

    others: by what they are called in a report. requests: all that may stand beside another. Those under a grammar
    must have been asked before: a grammar that is still being compiled keeps its request out of the batch.
    """

    main: Endpoint
    others: Mapping[str, Endpoint]
    requests: tuple[Request, ...]
    effort: Effort
    answers: dict[Request, Completion] = field(default_factory=dict)

    def alone(self, request: Request) -> Completion:
        """The answer of the endpoint under test to a request that is alone."""
        if request not in self.answers:
            self.answers[request] = self.main.ask([request])[0]
        return self.answers[request]

    def ask_each(self, requests: Iterable[Request]) -> None:
        """Ask each alone, so that no later batch waits for a grammar."""
        for request in requests:
            self.alone(request)

    def neighbours(self, request: Request, count: int, turn: int) -> list[Request]:
        """Requests of the same tenant, others in every turn; the request itself where there are no others."""
        own = [other for other in self.requests if other.tenant == request.tenant and other != request]
        return self._taken(own or [request], request, count, turn)

    def strangers(self, request: Request, count: int, turn: int) -> list[Request]:
        """Requests of other tenants, others in every turn."""
        pool = [other for other in self.requests if other.tenant != request.tenant]
        return self._taken(pool, request, count, turn)

    def _taken(self, pool: list[Request], request: Request, count: int, turn: int) -> list[Request]:
        """From another place of the pool for each request and turn, so that all are taken about equally often."""
        start = (self.requests.index(request) + turn) % len(pool) if pool else 0
        return list(islice(cycle(pool), start, start + count))


def observed(label: str, completion: Completion) -> Observed:
    """One replay, as it goes into a cell."""
    return Observed(label, Surface.of(completion), completion.wall_s)
