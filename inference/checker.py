"""The configuration checker: everything in an effective configuration that would break determinism, at once.

Promises that all violations are listed, not the first, and that what no rule knows is one. Passing is not a proof: what
remains to be shown on the device itself is listed beside. Starts no engine.
"""

from __future__ import annotations

from inference.effective import Effective
from inference.rule import Rule, Violation
from inference.rules import EVERY_DEVICE
from inference.rules_cpu import CPU
from inference.rules_cuda import CUDA


def rules_for(device: str) -> tuple[Rule, ...]:
    """The rules that judge a configuration of that device, in the order of their report."""
    return (*(CUDA if device == "cuda" else CPU), *EVERY_DEVICE)


def check(effective: Effective) -> tuple[Violation, ...]:
    """Every violation of every rule; empty where there is none."""
    rules = rules_for(effective.config.device)
    return tuple(violation for rule in rules for violation in rule.violations(effective))


def to_be_proved(effective: Effective) -> tuple[str, ...]:
    """What no rule can judge and only the device can show; one sentence each."""
    config = effective.config
    open_questions = []
    if config.status != "proved":
        open_questions.append("The profile is labelled 'to be proved on the device'.")
    if config.device == "cuda" and not effective.machine.compute_capabilities:
        open_questions.append("No GPU is visible here: its compute capability must be 8.0 or more.")
    if config.device == "cuda" and effective.enrolled_max_num_seqs is None:
        open_questions.append(f"No enrolment covers batches of max_num_seqs={config.max_num_seqs}.")
    return tuple(open_questions)
