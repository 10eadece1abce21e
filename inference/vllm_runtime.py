"""The process that vLLM runs in: its environment, and starting and stopping an engine in it.

vLLM reads environment variables when it is imported and again when an engine starts, so they are set before both.
Promises that a variable that is set to something else stops the start, and that the variables that vLLM itself sets on
the way are gone afterwards. One engine lives in a process at a time.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from inference.config import EngineConfig
from inference.containment import contained
from projection.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

PLUGIN_NAME = "dpm_invariant_attention"
PLUGIN_SOURCES = ("invariant_attention.py", "invariant_linear.py", "invariant_sampling.py")
BLOCK_SIZE = 128
FORBIDDEN_VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "it would override kv_cache_gib of the configuration"}


def environment_for(config: EngineConfig) -> dict[str, str]:
    """The variables that an engine of this configuration needs, each of which may be set to nothing else."""
    # Where nothing is compiled, vLLM's rank counting is not either: it would need a C++ compiler.
    eager = {} if config.features.compile else {"TORCHDYNAMO_DISABLE": "1"}
    return eager | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in process: starts in a quarter of the time, and can be scored
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # needs Triton; the choice must not depend on what else is installed
        "VLLM_PLUGINS": PLUGIN_NAME if config.attention.invariant else "",
        "VLLM_CPU_ATTN_SPLIT_KV": "1" if config.attention.split_kv else "0",
        "VLLM_BATCH_INVARIANT": "0",  # not supported on a CPU: accepted, then operations raise
        "OMP_NUM_THREADS": str(config.num_threads),
        "NUMBA_NUM_THREADS": "1",  # of the lookup of guesses, whose idle threads would spin beside the engine's
        "HF_HUB_OFFLINE": "1",  # the weights are pinned here; nothing is fetched
        "VLLM_NO_USAGE_STATS": "1",
    }


QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare_environment(config: EngineConfig) -> dict[str, str]:
    """Set the engine's variables and return the environment as vLLM will find it.

    Raises:
        ConfigurationError: a variable is set to another value, or vLLM was imported and has read another value.
    """
    required = {**environment_for(config), **config.environment}
    require_agreement(required, os.environ)
    before = dict(os.environ)
    os.environ.update({**QUIET, **before, **required})
    try:
        _require_unread(required)
    except ConfigurationError:
        _restore_environment(before)
        raise
    return dict(os.environ)


def require_agreement(required: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """See that no variable is set against what an engine needs.

    Raises:
        ConfigurationError: one is.
    """
    for name, reason in FORBIDDEN_VARIABLES.items():
        if name in environ:
            raise ConfigurationError(f"{name} is set: {reason}. Unset it", variable=name)
    for name, value in required.items():
        found = environ.get(name, value)
        if found != value:
            raise ConfigurationError(
                f"{name} is set to {found!r}, but this configuration needs {value!r}. Unset it, or change the "
                "configuration",
                variable=name,
                found=found,
                expected=value,
            )


def _require_unread(required: Mapping[str, str]) -> None:
    """An earlier import of vLLM may have kept values that `os.environ` no longer has."""
    if "vllm" not in sys.modules:
        return
    from vllm import envs

    for name in required.keys() & envs.environment_variables.keys():
        kept = getattr(envs, name)
        if kept != envs.environment_variables[name]():
            raise ConfigurationError(
                f"vLLM was imported before with {name}={kept!r}; start a new process", variable=name, found=repr(kept)
            )


@contextmanager
def vllm_contained(what: str) -> Iterator[None]:
    """As `containment.contained`, knowing vLLM's own errors. vLLM must be importable."""
    from vllm.exceptions import VLLMError

    with contained(what, VLLMError):
        yield


def start(config: EngineConfig, weights_dir: Path) -> LLMEngine:
    """Start vLLM in this process; `prepare_environment` has run.

    Raises:
        ConfigurationError: vLLM is not installed, an engine lives in this process already, or another plugin does.
        EngineError: vLLM cannot start.
    """
    if find_spec("vllm") is None:
        raise ConfigurationError("vLLM is not installed: run the set-up, or ask for the transformers engine")
    environ = dict(os.environ)
    try:
        with contained("importing vLLM"):
            import vllm  # noqa: F401
        with vllm_contained(f"starting vLLM on {weights_dir}"):
            return _start(config, weights_dir)
    finally:
        _restore_environment(environ)


def _restore_environment(environ: Mapping[str, str]) -> None:
    """vLLM sets variables for processes that it would start, random names and this machine's paths among them."""
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)


def _start(config: EngineConfig, weights_dir: Path) -> LLMEngine:
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    import torch
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
    from vllm.v1.engine.llm_engine import LLMEngine

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise ConfigurationError("this process has an engine already; close it first")
    torch._dynamo.config.disable = (
        not config.features.compile
    )  # the variable comes too late where torch was imported before
    torch.set_num_threads(config.num_threads)
    _set_attention(config)
    _keep_kernels()
    with ExitStack() as failed:
        failed.callback(cleanup_dist_env_and_memory)
        llm = LLMEngine.from_engine_args(_engine_args(config, weights_dir))
        failed.pop_all()
    return llm


def _engine_args(config: EngineConfig, weights_dir: Path) -> EngineArgs:
    from inference import vllm_args  # which imports this module

    arguments = vllm_args.engine_arguments(config, weights_dir)
    arguments.use_tqdm_on_load = False
    arguments.disable_log_stats = True
    return arguments


def _keep_kernels() -> None:
    """vLLM registers its CPU kernels at every start, and stumbles over modules that an earlier engine has loaded
    (numba, with speculation). Those of an earlier start are still in their places."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import dispatcher

    if dispatcher._registry:
        current_platform.register_triton_kernel_overrides = lambda: None


def _set_attention(config: EngineConfig) -> None:
    """Register our attention, or see that nobody has."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    if config.attention.invariant:
        if current_platform.is_zen_cpu():
            raise ConfigurationError("zentorch is installed: its kernels were never shown to be invariant; remove it")
        from inference import invariant_attention

        invariant_attention.register()
    elif AttentionBackendEnum.CPU_ATTN.is_overridden():
        raise ConfigurationError("invariant attention was loaded in this process before; start a new process")


def stop(llm: LLMEngine) -> None:
    """Stop the engine and free what it held, so that another can start in this process."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    with vllm_contained("stopping vLLM"):
        llm.engine_core.shutdown()
        cleanup_dist_env_and_memory()
