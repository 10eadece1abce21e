"""A vLLM server as anybody would start it: stock settings, no plugin, no middleware, nothing of ours in between.

It is what the pinned lane is compared with, and it speaks the protocols of both live APIs, so that their clients run
on it unchanged. Stock means vLLM's defaults: prefix caching, chunked prefill, split KV, its own attention, and
torch.compile unless it is switched off. What is set is what a measurement needs: dtype, threads, the size of the KV
cache. Its process is contained as the deterministic server's is, by `inference.server`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from inference import server, weights
from inference.identity import library_versions, processor_fields, weights_fields
from inference.live_endpoint import Endpoint
from inference.live_models import Pins, Provider
from inference.tokenizer import PinnedTokenizer
from inference.vllm_identity import LIBRARIES
from projection.engine import EngineIdentity

Dtype = Literal["float32", "bfloat16"]
MODEL_NAME = "uncontrolled"
HOST = "127.0.0.1"
PATHS: dict[Provider, str] = {"anthropic": "", "openai": "/v1"}
PINS: dict[Provider, Pins] = {
    "anthropic": Pins("taken", "absent", "absent", "absent"),
    "openai": Pins("taken", "taken", "may be returned", "taken"),
}
"""What vLLM's routes of either protocol take; all of it is sent."""
OURS = ("VLLM_", "OMP_", "TORCHDYNAMO", "DPM_")
"""Beginnings of variables that an engine of ours leaves in this process: stock settings have none of them."""


@dataclass(frozen=True, slots=True)
class StockSettings:
    """What is chosen about an uncontrolled server; everything else is vLLM's default.

    compile: vLLM's default is on, which takes a C++ compiler and half a minute.
    kv_cache_gib: bounds memory; with room for all requests it changes no bit.
    """

    dtype: Dtype
    num_threads: int = 2
    compile: bool = True
    kv_cache_gib: float = 2.0

    @property
    def arguments(self) -> list[str]:
        size = int(self.kv_cache_gib * 2**30)
        eager = [] if self.compile else ["--enforce-eager"]
        return [f"--dtype={self.dtype}", f"--kv-cache-memory-bytes={size}", *eager]

    @property
    def environment(self) -> dict[str, str]:
        eager = {} if self.compile else {"TORCHDYNAMO_DISABLE": "1"}
        return eager | {
            "VLLM_PLUGINS": "",  # ours is installed, and must not be loaded
            "VLLM_USE_V2_MODEL_RUNNER": "0",  # needs Triton
            "OMP_NUM_THREADS": str(self.num_threads),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }


def plan_uncontrolled(settings: StockSettings, weights_dir: Path) -> server.ServerPlan:
    """Check the weights and say what to start, on a port that is free.

    Raises:
        WeightsError: a pinned file is missing, added or changed.
    """
    manifest = weights.check(weights_dir)
    identity = EngineIdentity(
        {
            "kind": "uncontrolled vllm server",
            "promises_equal_bytes": False,
            "settings": asdict(settings),
            "flags": [*settings.arguments],
            "environment": settings.environment,
            "tokenizer_digest": PinnedTokenizer(weights_dir).digest,
            "weights": weights_fields(manifest),
            "versions": library_versions(LIBRARIES),
            "device": processor_fields(),
        }
    )
    port = server.free_port(HOST)
    own = [f"--model={weights_dir.resolve()}", f"--served-model-name={MODEL_NAME}", f"--host={HOST}", f"--port={port}"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    command = (sys.executable, "-P", "-m", server.MODULE, *own, *settings.arguments)
    return server.ServerPlan(identity, command, inherited | settings.environment, 0, HOST, port)


@contextmanager
def uncontrolled_server(plan: server.ServerPlan, log: Path) -> Iterator[server.Server]:
    """Start it, wait until it answers, and end it with all its processes when the context ends.

    Raises:
        EngineError: it cannot be started, or ends before it answers; with the last lines of `log`.
    """
    with server.running(plan, log, None) as started:
        started.wait_until(_answers(plan))
        yield started


def endpoint_of(plan: server.ServerPlan, provider: Provider) -> Endpoint:
    """The server's route of that provider's protocol; it asks for no key."""
    return Endpoint(provider, MODEL_NAME, plan.url + PATHS[provider], PINS[provider], None)


def _answers(plan: server.ServerPlan) -> server.Settle:
    import httpx

    def look() -> str | None:
        try:
            answer = httpx.get(f"{plan.url}/v1/models", timeout=10.0, trust_env=False)
            return "ready" if answer.json()["data"][0]["id"] == MODEL_NAME else None
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return None

    return look
