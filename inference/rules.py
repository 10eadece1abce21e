"""The checker's rules that hold on every device, and the tables of what is known to change no output bit.

What no table and no rule knows is a violation: a new flag or variable of vLLM is refused until somebody has looked.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.effective import Effective
from inference.identity import ENVIRONMENT_PREFIXES, SET_BY_VLLM
from inference.rule import Rule, refused_arguments
from inference.vllm_runtime import QUIET

HARMLESS_VARIABLES = frozenset(QUIET) | {
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_VERSION",
    "TORCHINDUCTOR_CACHE_DIR", "TORCH_CUDA_ARCH_LIST", "TORCH_HOME", "TRITON_CACHE_DIR", "VLLM_API_KEY",
    "VLLM_BUILD_COMMIT", "VLLM_BUILD_PIPELINE", "VLLM_BUILD_URL", "VLLM_CACHE_ROOT", "VLLM_CONFIGURE_LOGGING",
    "VLLM_CONFIG_ROOT", "VLLM_DISABLE_LOG_LOGO", "VLLM_DO_NOT_TRACK", "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "VLLM_HOST_IP",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "VLLM_IMAGE_TAG", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "VLLM_LOGGING_COLOR",
    "VLLM_LOGGING_CONFIG_PATH", "VLLM_LOGGING_PREFIX", "VLLM_LOG_BATCHSIZE_INTERVAL", "VLLM_LOG_STATS_INTERVAL",
    "VLLM_NO_USAGE_STATS", "VLLM_PORT", "VLLM_PROCESS_NAME_PREFIX", "VLLM_RPC_BASE_PATH", "VLLM_USAGE_SOURCE",
    "VLLM_USAGE_STATS_SERVER", "VLLM_WORKER_MULTIPROC_METHOD",
}  # fmt: skip
"""Talk, addresses, secrets, places of caches, processes: what a server may inherit, or a configuration may set."""

RULED_VARIABLES = frozenset({"VLLM_BATCH_INVARIANT", "VLLM_CPU_ATTN_SPLIT_KV", "VLLM_PLUGINS", "VLLM_ENABLE_GEMM_RS"})
"""Judged by a rule of their own."""

HARMLESS_ARGUMENTS = (
    "aggregate_engine_logging", "allow_credentials", "allowed_headers", "allowed_methods", "allowed_origins", "api_key",
    "collect_detailed_traces", "custom_histogram_buckets", "disable_access_log_for_endpoints", "disable_fastapi_docs",
    "disable_log_stats", "disable_uvicorn_access_log", "enable_log_deltas", "enable_log_outputs", "enable_log_requests",
    "enable_offline_docs", "enable_request_id_headers", "enable_server_load_tracking", "enable_ssl_refresh",
    "fingerprint_mode", "fingerprint_value", "h11_max_header_count", "h11_max_incomplete_event_size", "host",
    "kv_cache_metrics", "kv_cache_metrics_sample", "log_error_stack", "max_log_len", "max_logprobs",
    "max_num_queued_reqs", "max_num_queued_tokens", "middleware", "otlp_traces_endpoint", "port", "root_path",
    "served_model_name", "show_hidden_metrics_for_version", "shutdown_timeout", "sse_keep_alive_interval",
    "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_ciphers", "ssl_keyfile", "uds", "use_tqdm_on_load",
    "uvicorn_log_level",
)  # fmt: skip
"""Arguments of the HTTP front, of logs and of metrics."""

LORA = ("enable_lora", "lora_modules", "default_mm_loras")
OFFLOADING = (
    "cpu_offload_gb", "ec_transfer_config", "kv_offloading_size", "kv_transfer_config", "offload_group_size",
    "weight_transfer_config",
)  # fmt: skip
PARALLELISM = (
    "api_server_count", "data_parallel_size", "data_parallel_size_local", "decode_context_parallel_size", "enable_dbo",
    "enable_elastic_ep", "enable_eplb", "enable_expert_parallel", "nnodes", "node_rank", "pipeline_parallel_size",
    "prefill_context_parallel_size", "ubatch_size",
)  # fmt: skip
SEQUENCE_PARALLELISM = (
    "enable_hc_sp", "compilation_config.pass_config.enable_sp", "compilation_config.pass_config.fuse_gemm_comms",
)  # fmt: skip
SAMPLING = ("logits_processors", "override_generation_config")
SPECULATION = ("spec_method", "spec_model", "spec_tokens")
MOE_BACKEND = ("kernel_config.moe_backend", "moe_backend")
"""Arguments that the rules of a device judge by their value, as they do `SPECULATION`."""

RULED_ARGUMENTS = (
    *LORA, *OFFLOADING, *PARALLELISM, *SEQUENCE_PARALLELISM, *SAMPLING, *SPECULATION, *MOE_BACKEND
)  # fmt: skip

TESTED_MAX_NUM_SEQS = {"cpu": 64}
"""The largest batch in which our tests compared bits, where no enrolment says more."""


def _unpinned(effective: Effective) -> Iterator[str]:
    if effective.model.digest is None:
        yield effective.model.problem or f"{effective.config.model} is not pinned"


def _other_model(effective: Effective) -> Iterator[str]:
    config, model = effective.config, effective.model
    if model.digest is None:
        return
    if config.revision is not None and not str(model.source).endswith(f"@{config.revision}"):
        yield f"the weights come from {model.source}, the configuration wants revision {config.revision}"
    if config.manifest_digest is not None and model.digest != config.manifest_digest:
        yield f"the weights' manifest is {model.digest}, the configuration wants {config.manifest_digest}"


def _contradictions(effective: Effective) -> Iterator[str]:
    names = (effective.required.keys() | effective.config.environment.keys()) - RULED_VARIABLES - HARMLESS_VARIABLES
    for name in sorted(names):
        values = effective.variable(name)
        if len(values) > 1:
            yield f"{name} is wanted as {values[0]!r} and set to {values[1]!r}"


def _unknown_variables(effective: Effective) -> Iterator[str]:
    known = effective.required.keys() | HARMLESS_VARIABLES | RULED_VARIABLES
    prefixes = (*ENVIRONMENT_PREFIXES, "LD_PRELOAD")
    inherited = {
        name
        for name, value in effective.outside.items()
        if name.startswith(prefixes) and SET_BY_VLLM.get(name) != value
    }
    yield from sorted((inherited | effective.config.environment.keys()) - known)


def _unknown_arguments(effective: Effective) -> Iterator[str]:
    known = effective.changed_under(*HARMLESS_ARGUMENTS, *RULED_ARGUMENTS)
    yield from (found for found in effective.changed_under(*effective.arguments.changed) if found not in known)


def _foreign_sampling_defaults(effective: Effective) -> Iterator[str]:
    if effective.argument("generation_config") != "vllm":
        yield f"generation_config={effective.argument('generation_config')}"


def _uncovered_batch(effective: Effective) -> Iterator[str]:
    tested = TESTED_MAX_NUM_SEQS.get(effective.config.device)
    covered = tested if effective.enrolled_max_num_seqs is None else effective.enrolled_max_num_seqs
    max_num_seqs = effective.argument("max_num_seqs")
    if covered is not None and max_num_seqs > covered:
        yield f"max_num_seqs={max_num_seqs}, and batches were compared up to {covered}"


def _quantised_kv_cache(effective: Effective) -> Iterator[str]:
    dtype = effective.argument("kv_cache_dtype")
    if dtype not in ("auto", effective.argument("dtype")):
        yield f"kv_cache_dtype={dtype}"
    of_model = (effective.model.model_config or {}).get("quantization_config") or {}
    if of_model.get("kv_cache_scheme") is not None:
        yield "the model's quantization_config has a kv_cache_scheme"


def _sequence_parallelism(effective: Effective) -> Iterator[str]:
    yield from effective.changed_under(*SEQUENCE_PARALLELISM)
    yield from (f"VLLM_ENABLE_GEMM_RS={value}" for value in effective.variable("VLLM_ENABLE_GEMM_RS") if value != "0")


EVERY_DEVICE: tuple[Rule, ...] = (
    Rule(
        "model-unpinned",
        _unpinned,
        "Without a digest of every file of the model, nobody can show that the same weights answer again.",
        "Fetch it with 'dpm weights pull', or pin a directory of your own with 'dpm weights pin'.",
    ),
    Rule(
        "model-differs",
        _other_model,
        "The configuration names the weights that it was proved with, and others are here.",
        "Pull that revision, or change the configuration: it is then another engine.",
    ),
    Rule(
        "environment-contradiction",
        _contradictions,
        "vLLM would read another value than the configuration wants.",
        "Unset the variable, or change the configuration.",
    ),
    Rule(
        "environment-unknown",
        _unknown_variables,
        "The variable belongs to a family that can change an output bit, and no rule knows what this one does.",
        "Unset it, or take it out of `environment`.",
    ),
    Rule(
        "argument-unknown",
        _unknown_arguments,
        "The value is not vLLM's default, and no rule knows whether it changes an output bit.",
        "Take it out of `vllm_arguments`.",
    ),
    Rule(
        "generation-config",
        _foreign_sampling_defaults,
        "Anything but `vllm` lets the model's repository set sampling defaults.",
        "Set generation_config: vllm.",
    ),
    refused_arguments("not-greedy", SAMPLING, "Decoding is greedy, with nothing that changes its scores."),
    Rule(
        "batch-not-covered",
        _uncovered_batch,
        "Batch invariance was seen to end between batch sizes: a batch that no test compared proves nothing.",
        "Lower max_num_seqs, or enrol the device with the larger batch.",
        issue=51187,
    ),
    Rule(
        "kv-cache-quantised",
        _quantised_kv_cache,
        "A quantised KV cache gives a cached token other bits than one computed in the same step.",
        "Set kv_cache_dtype: auto, and take a model without a KV cache scheme.",
    ),
    Rule(
        "sequence-parallelism",
        _sequence_parallelism,
        "Its reduce-scatter adds in an order that depends on which rank holds a token, hence on the batch.",
        "Take it out of `vllm_arguments`, and unset VLLM_ENABLE_GEMM_RS.",
        issue=56370,
    ),
    refused_arguments(
        "parallelism",
        PARALLELISM,
        "Only tensor parallelism on one machine is known here; other ways to divide the work move sums elsewhere.",
    ),
    refused_arguments("lora", LORA, "Adapters are weights that are not pinned, in kernels that were not compared."),
    refused_arguments("offloading", OFFLOADING, "Weights or caches that travel at run time were never compared."),
)
