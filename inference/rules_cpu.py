"""The checker's rules for an engine on a CPU, where batch invariance is our own plugin's work.

What may be switched on is what docs/lane.md has evidence for; the rest is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.effective import Effective
from inference.rule import Rule
from inference.rules import MOE_BACKEND, SPECULATION
from inference.vllm_runtime import PLUGIN_NAME

KNOWN_SPECULATION_METHODS = frozenset({"ngram"})
MAX_SPECULATIVE_TOKENS = 8
KNOWN_ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM"})
"""Architectures whose bits the tests compare, the second with a sliding window."""


def _vllms_own_mode(effective: Effective) -> Iterator[str]:
    yield from (f"VLLM_BATCH_INVARIANT={value}" for value in effective.variable("VLLM_BATCH_INVARIANT") if value != "0")


def _split_kv(effective: Effective) -> Iterator[str]:
    for value in effective.variable("VLLM_CPU_ATTN_SPLIT_KV") or ("unset, which is on",):
        if value != "0":
            yield f"VLLM_CPU_ATTN_SPLIT_KV={value}"


def _stock_attention(effective: Effective) -> Iterator[str]:
    if not effective.config.attention.invariant:
        yield "attention.invariant: false"
        return
    yield from (f"VLLM_PLUGINS={value}" for value in effective.variable("VLLM_PLUGINS") if value != PLUGIN_NAME)


def _gpu_settings(effective: Effective) -> Iterator[str]:
    attention = effective.config.attention
    if attention.backend not in (None, "CPU_ATTN"):
        yield f"attention.backend: {attention.backend}"
    if attention.flash_attn_version is not None:
        yield f"attention.flash_attn_version: {attention.flash_attn_version}"
    yield from effective.changed_under(*MOE_BACKEND)


def _dtype(effective: Effective) -> Iterator[str]:
    if effective.argument("dtype") != "float32":
        yield f"dtype={effective.argument('dtype')}"


def _quantised(effective: Effective) -> Iterator[str]:
    if effective.quantisation is not None:
        yield f"quantisation {effective.quantisation}"


def _compiled(effective: Effective) -> Iterator[str]:
    if effective.config.features.compile:
        yield "features.compile: true"


def _deep_speculation(effective: Effective) -> Iterator[str]:
    speculation = effective.config.features.speculation
    if speculation is not None and speculation.num_speculative_tokens > MAX_SPECULATIVE_TOKENS:
        yield f"num_speculative_tokens: {speculation.num_speculative_tokens}"


def _unknown_speculation(effective: Effective) -> Iterator[str]:
    speculation = effective.config.features.speculation
    if speculation is not None and speculation.method not in KNOWN_SPECULATION_METHODS:
        yield f"features.speculation: {speculation.method}"
    yield from effective.changed_under(*SPECULATION)


def _too_many_threads(effective: Effective) -> Iterator[str]:
    num_threads, num_cores = effective.config.num_threads, effective.machine.num_cores
    if num_threads > num_cores:
        yield f"num_threads: {num_threads} on {num_cores} cores"


def _several_processes(effective: Effective) -> Iterator[str]:
    if effective.argument("tensor_parallel_size") != 1:
        yield f"tensor_parallel_size={effective.argument('tensor_parallel_size')}"


def _zentorch(effective: Effective) -> Iterator[str]:
    if effective.machine.has_zentorch:
        yield "the package zentorch"


def _unknown_architecture(effective: Effective) -> Iterator[str]:
    if effective.model.model_config is None:
        if effective.model.digest is not None:
            yield "no config.json that can be read"
    elif not effective.architectures or not KNOWN_ARCHITECTURES.issuperset(effective.architectures):
        yield f"architecture {', '.join(effective.architectures) or 'not named'}"


CPU: tuple[Rule, ...] = (
    Rule(
        "cpu-batch-invariant-mode",
        _vllms_own_mode,
        "vLLM's own mode does not exist on a CPU: it is accepted, and then softmax, mean and bmm raise.",
        "Unset VLLM_BATCH_INVARIANT; attention.invariant does its work here.",
    ),
    Rule(
        "cpu-split-kv",
        _split_kv,
        "A split KV cache is summed in an order that depends on the number of threads.",
        "Set attention.split_kv: false, and unset VLLM_CPU_ATTN_SPLIT_KV.",
    ),
    Rule(
        "cpu-stock-attention",
        _stock_attention,
        "vLLM's CPU attention cuts its tiles by the length of the whole step: answers depend on neighbours.",
        "Set attention.invariant: true, and unset VLLM_PLUGINS.",
    ),
    Rule(
        "cpu-foreign-kernels",
        _gpu_settings,
        "A CPU has one attention back end, which our plugin makes invariant; this asks for another kernel.",
        "Take the setting out.",
    ),
    Rule(
        "cpu-dtype",
        _dtype,
        "Only the float32 matrix product of vLLM's CPU build is invariant.",
        "Set dtype: float32.",
    ),
    Rule(
        "cpu-quantisation",
        _quantised,
        "No quantised matrix product was compared on a CPU.",
        "Take plain weights.",
    ),
    Rule(
        "cpu-compiled",
        _compiled,
        "A compiled graph is made for many rows and used for one: our product of a lone row (inner dimension above "
        "1,024, AVX-512) is not in it, and a token decoded alone gets other bits than in a batch.",
        "Set features.compile: false.",
    ),
    Rule(
        "cpu-speculation-depth",
        _deep_speculation,
        f"Bits were compared with up to {MAX_SPECULATIVE_TOKENS} tokens guessed ahead.",
        f"Set num_speculative_tokens to {MAX_SPECULATIVE_TOKENS} at most.",
    ),
    Rule(
        "cpu-speculation-method",
        _unknown_speculation,
        "No rule knows this way to guess tokens.",
        "Set features.speculation to null, or its method to ngram.",
    ),
    Rule(
        "cpu-threads",
        _too_many_threads,
        "More threads than cores take turns: the engine is slow beyond use, and no test ran so.",
        "Lower num_threads; scale by processes.",
    ),
    Rule(
        "cpu-tensor-parallel",
        _several_processes,
        "Sums over several processes were not compared on a CPU.",
        "Set tensor_parallel_size: 1; scale by servers behind a router.",
    ),
    Rule(
        "cpu-zentorch",
        _zentorch,
        "It replaces kernels by its own, which were never shown to be invariant.",
        "Uninstall zentorch.",
    ),
    Rule(
        "architecture-unknown",
        _unknown_architecture,
        f"The tests compare bits of {', '.join(sorted(KNOWN_ARCHITECTURES))}; other layers may not be invariant.",
        "Take a model of a known architecture, or add a test that compares this one.",
    ),
)
