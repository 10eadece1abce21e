"""What a run holds: which lanes, which checks, controls and workloads on each, and how much of everything.

Two lanes stand for one engine: the configured one, on few workloads; and a tiny random model under the same
configuration, on all of them and in wide batches, since a two-core machine cannot run those on a real model in minutes.
Results name the model of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from determinism.suite.arena import Effort
from determinism.suite.checks import CHECKS, Check, choose_checks
from determinism.suite.controls import CONTROLS, Control
from determinism.suite.lane import Lane, LocalLane, Place, ServerLane
from determinism.suite.run import LanePlan
from determinism.tiny_model import NAME as TINY_NAME
from determinism.tiny_model import ensure_tiny_model
from determinism.workloads import Workload, choose_workloads, load_workloads
from inference import engines
from inference.config import EngineConfig
from projection.errors import NotFoundError
from projection.record import template_digest

LaneName = Literal["configured", "tiny"]
LANE_NAMES: tuple[LaneName, ...] = get_args(LaneName)

QUICK_WORKLOADS = ("mortgage-projection-short", "claim-projection-short-free")
QUICK_TINY_WORKLOADS = (*QUICK_WORKLOADS, "claim-decision-short", "claim-projection-long-free")
ON_A_SERVER = ("routes", "second server")
MODELLED_FAULTS = ("invariant attention off",)  # which two layers do not show
BRIEF, QUICK, FULL = Effort(24, (4,), 3), Effort(24, (2, 4), 3), Effort(48, (2, 8), 5)
QUICK_TINY, FULL_TINY = Effort(48, (2, 8, 32), 3), Effort(48, (2, 8, 32), 5)
TINY_SEQUENCES, TINY_BATCHED_TOKENS, TINY_MODEL_LEN, TINY_KV_GIB = 32, 16_384, 4_096, 0.25


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for.

    checks, workloads, lanes: empty is all. power: comparisons of each check on each lane, at least, all workloads
    together.
    """

    engine: str = "vllm"
    checks: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    lanes: tuple[LaneName, ...] = ()
    is_quick: bool = False
    power: int | None = None

    def parameters(self, config: EngineConfig, plans: Sequence[LanePlan]) -> dict[str, Any]:
        """What must be equal for a run to be continued; and how many cells make it whole."""
        return {
            "num_cells": sum(1 for plan in plans for _ in plan.cell_keys()),
            "engine": self.engine,
            "checks": list(self.checks),
            "workloads": list(self.workloads),
            "lanes": list(self.lanes),
            "is_quick": self.is_quick,
            "power": self.power,
            "config": config.model_dump(mode="json"),
            "template_digest": template_digest(),
        }


def make_plans(wish: Wish, config: EngineConfig, scratch: Path) -> list[LanePlan]:
    """The plans of a wish; those that would hold nothing are left out.

    Raises:
        NotFoundError: there is no such check, workload, lane or model. ConfigurationError: there is no such engine.
    """
    engines.require_known(wish.engine)
    unknown = sorted(set(wish.lanes) - set(LANE_NAMES))
    if unknown:
        raise NotFoundError(f"there is no lane {', '.join(map(repr, unknown))}; there are {', '.join(LANE_NAMES)}")
    place = Place.here(scratch)
    makers: dict[LaneName, Callable[[], LanePlan]] = {"configured": partial(_configured, wish, config, place)}
    if wish.engine == "vllm":
        makers["tiny"] = partial(_tiny, wish, config, place)
    plans = [make() for name, make in makers.items() if not wish.lanes or name in wish.lanes]
    return [plan for plan in plans if plan.checks and plan.workloads]


def _configured(wish: Wish, config: EngineConfig, place: Place) -> LanePlan:
    """The engine that a person named. Where the tiny model is there too, a quick run leaves it what takes long."""
    checks = _checks(wish)
    is_brief = wish.is_quick and wish.engine == "vllm" and (not wish.lanes or "tiny" in wish.lanes)
    controls = [control for control in _controls(checks) if not is_brief or _needs_the_model(control)]
    open_lane: Callable[[], Lane]
    if engines.is_url(wish.engine):
        label, open_lane = wish.engine, partial(ServerLane, wish.engine, config)
    else:
        label = f"{wish.engine} {config.model}" if wish.engine != "scripted" else wish.engine
        open_lane = partial(LocalLane, label, wish.engine, config, place)
    workloads = _workloads(wish, QUICK_WORKLOADS if wish.is_quick else None)
    effort = BRIEF if is_brief else QUICK if wish.is_quick else FULL
    plan = _plan(label, open_lane, checks, controls, workloads, wish, effort)
    return replace(plan, max_batch_workloads=1) if is_brief else plan


def _tiny(wish: Wish, config: EngineConfig, place: Place) -> LanePlan:
    """The tiny model under the same configuration, with room for wide batches. A quick run starts no server of it."""
    checks = [check for check in _checks(wish) if not (wish.is_quick and check.beside in ON_A_SERVER)]
    controls = [control for control in _controls(checks) if control.fault not in MODELLED_FAULTS]
    directory = ensure_tiny_model(engines.existing_weights(config.model), engines.home() / "weights" / TINY_NAME)
    tiny = config.model_copy(
        update={
            "model": str(directory),
            "revision": None,
            "manifest_digest": None,
            "max_num_seqs": TINY_SEQUENCES,
            "max_num_batched_tokens": TINY_BATCHED_TOKENS,
            "max_model_len": TINY_MODEL_LEN,
            "kv_cache_gib": TINY_KV_GIB,
        }
    )
    label = f"{wish.engine} {TINY_NAME}"
    open_lane = partial(LocalLane, label, wish.engine, tiny, place)
    workloads = _workloads(wish, QUICK_TINY_WORKLOADS if wish.is_quick else None)
    effort = QUICK_TINY if wish.is_quick else FULL_TINY
    return _plan(label, open_lane, checks, controls, workloads, wish, effort)


def _plan(
    label: str,
    open_lane: Callable[[], Lane],
    checks: Sequence[Check],
    controls: Sequence[Control],
    workloads: Sequence[Workload],
    wish: Wish,
    effort: Effort,
) -> LanePlan:
    company = [workload for workload in load_workloads() if not (wish.is_quick and "long" in workload.name)]
    more = Effort(effort.max_tokens, effort.batch_sizes, effort.width, wish.power or 1)
    return LanePlan(label, open_lane, tuple(checks), tuple(controls), tuple(workloads), tuple(company), more)


def _checks(wish: Wish) -> list[Check]:
    return choose_checks(wish.checks) if wish.checks else list(CHECKS)


def _controls(checks: Sequence[Check]) -> list[Control]:
    names = {check.name for check in checks}
    return [control for control in CONTROLS if control.check in names]


def _needs_the_model(control: Control) -> bool:
    """Whether a fault must be put into the configured model, since the tiny one does not show it or has no server."""
    return control.fault in MODELLED_FAULTS or any(c.name == control.check for c in CHECKS if c.beside in ON_A_SERVER)


def _workloads(wish: Wish, names: Sequence[str] | None) -> list[Workload]:
    chosen = choose_workloads(wish.workloads) if wish.workloads else load_workloads()
    return [workload for workload in chosen if wish.workloads or names is None or workload.name in names]
