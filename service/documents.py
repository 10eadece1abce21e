"""The JSON documents that `--json` prints. Their keys are a contract: they are added to, never renamed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from projection.case import SealedDecision
from projection.record import RecordedCall
from projection.replay import LEVELS, ReplayReport


def decision_document(sealed: SealedDecision) -> dict[str, Any]:
    """What `dpm decide --json` prints."""
    record, content = sealed.record, sealed.record.content
    calls = (content.projection, content.decision_call)
    return {
        "record_id": sealed.record_id,
        "content_digest": record.content_digest,
        "engine_identity": content.engine_identity,
        "tenant_id": record.tenant_id,
        "case_id": record.case_id,
        "log_head": record.log_head.entry_hash,
        "log_position": record.log_head.position,
        "view": {
            "text": sealed.view.text,
            "num_chars": sealed.view.num_chars,
            "budget_chars": content.budget.asked_chars,
            "digest": content.view_digest,
            "facts": [asdict(fact) for fact in sealed.view.facts],
            "missing_required": list(sealed.missing_required),
            "omissions": [asdict(omission) for omission in sealed.omissions],
        },
        "decision": content.decision.model_dump(mode="json"),
        "calls": [_call(call, wall_s) for call, wall_s in zip(calls, record.wall_s, strict=True)],
    }


def replay_document(record_id: str, report: ReplayReport) -> dict[str, Any]:
    """What `dpm replay --json` prints; a level that was not reached is null."""
    return {
        "record_id": record_id,
        "verdict": report.verdict,
        "levels": {level: report.levels.get(level) for level in LEVELS},
        "first_divergence": asdict(report.first_divergence) if report.first_divergence else None,
        "engine_identity": report.engine_identity,
        "engine_kind": report.engine_kind,
    }


def _call(call: RecordedCall, wall_s: float) -> dict[str, Any]:
    return {
        "num_prompt_tokens": len(call.prompt_token_ids),
        "num_completion_tokens": len(call.token_ids),
        "finish_reason": call.finish_reason,
        "min_margin": call.min_margin,
        "wall_s": wall_s,
    }
