"""The controls: for every check, at least one fault that it must find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from determinism.suite.faults import Circumstance, PureFault, RealFault, always


@dataclass(frozen=True, slots=True)
class Control:
    """A check that must fail.

    target: what has the fault, the endpoint itself or what was opened beside it.
    workload: the one that it is asked on, where it does not show on every one.
    """

    name: str
    check: str
    target: Literal["endpoint", "beside"]
    fault: PureFault | RealFault
    workload: str | None = None


def _is_third_in_a_row(c: Circumstance) -> bool:
    return c.how == "at once" and len(c.batch) == 1 and c.num_before == 2


def _is_pair(c: Circumstance) -> bool:
    return c.how == "at once" and len(c.batch) == 2


def _is_not_first(c: Circumstance) -> bool:
    """At a later place of a batch of one tenant, as wide as only the check of places has it."""
    return c.how == "at once" and c.place > 0 and len(c.batch) % 2 == 1 and not _has_strangers(c)


def _is_late(c: Circumstance) -> bool:
    return c.how == "late"


def _has_strangers(c: Circumstance) -> bool:
    return c.how == "at once" and any(other.tenant != c.request.tenant for other in c.batch)


def _is_beside_abort(c: Circumstance) -> bool:
    return c.how == "beside an abort"


def _is_scored(c: Circumstance) -> bool:
    return c.how == "scored"


CONTROLS: tuple[Control, ...] = (
    Control(
        "one prompt byte, the third time", "run_to_run", "endpoint", PureFault("one prompt byte", _is_third_in_a_row)
    ),
    Control("one ULP, when scored", "prefill_vs_decode", "endpoint", PureFault("one ULP", _is_scored)),
    Control("one ULP, in a batch of two", "batch_size", "endpoint", PureFault("one ULP", _is_pair)),
    Control("one ULP, when not first", "batch_position", "endpoint", PureFault("one ULP", _is_not_first)),
    Control("one ULP, when late", "arrival_order", "endpoint", PureFault("one ULP", _is_late)),
    Control("one ULP, beside strangers", "strangers", "endpoint", PureFault("one ULP", _has_strangers)),
    Control("one ULP, beside an abort", "neighbour_abort", "endpoint", PureFault("one ULP", _is_beside_abort)),
    Control("one ULP, in the new process", "restart", "beside", PureFault("one ULP", always)),
    Control("one ULP, with speculation turned", "speculation", "beside", PureFault("one ULP", always)),
    Control("one ULP, when in chunks", "chunked_prefill", "beside", PureFault("one ULP", always)),
    Control("one ULP, with the cache turned", "prefix_cache", "beside", PureFault("one ULP", always)),
    Control("one ULP, under pressure", "preemption", "beside", PureFault("one ULP", always)),
    Control("one prompt byte, over the routes", "route", "beside", PureFault("one prompt byte", always)),
    Control("one ULP, over the routes", "streaming", "beside", PureFault("one ULP", always)),
    Control("one ULP, on the other servers", "second_server", "beside", PureFault("one ULP", always)),
    Control("invariant attention off", "batch_size", "endpoint", "invariant attention off"),
    Control(  # short prompts can score alike without it
        "invariant attention off",
        "prefill_vs_decode",
        "endpoint",
        "invariant attention off",
        workload="claim-projection-long-free",
    ),
    Control("stock settings", "strangers", "endpoint", "stock settings"),
    Control("two threads, split KV", "restart", "beside", "two threads, split KV"),
    Control("one weight byte", "restart", "beside", "one weight byte"),
)


def controls_of(check: str) -> Iterator[Control]:
    """The controls of a check: pure ones first."""
    return (control for control in CONTROLS if control.check == check)
