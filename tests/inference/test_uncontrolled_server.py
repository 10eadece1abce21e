"""What an uncontrolled server is started with: vLLM's own defaults, and nothing of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference import server_settings, vllm_runtime
from inference.uncontrolled_server import MODEL_NAME, StockSettings, endpoint_of, plan_uncontrolled
from inference.weights import pin
from projection.errors import WeightsError
from tests.inference.test_tokenizer import write


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write(tmp_path, config__json={"architectures": ["LlamaForCausalLM"], "vocab_size": 300})
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    pin(tmp_path)
    return tmp_path


def test_it_has_no_plugin_no_middleware_and_no_flag_of_the_lane(model: Path) -> None:
    plan = plan_uncontrolled(StockSettings("bfloat16"), model)
    flags = {argument.partition("=")[0] for argument in plan.command[4:]}
    own = {"--model", "--served-model-name", "--host", "--port"}
    assert flags == own | {"--dtype", "--kv-cache-memory-bytes"}
    assert plan.environment["VLLM_PLUGINS"] == ""
    assert "VLLM_CPU_ATTN_SPLIT_KV" not in plan.environment
    assert plan.environment["OMP_NUM_THREADS"] == "2"


def test_what_an_engine_of_ours_left_in_the_environment_does_not_reach_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VLLM_CPU_ATTN_SPLIT_KV", "VLLM_ENABLE_V1_MULTIPROCESSING", "TORCHDYNAMO_DISABLE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv(server_settings.SETTINGS_VARIABLE, "/settings")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = plan_uncontrolled(StockSettings("float32"), model)
    left = {name for name in plan.environment if name.startswith(("VLLM_", "TORCHDYNAMO", "DPM_"))}
    assert left == {"VLLM_PLUGINS", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_NO_USAGE_STATS"}
    assert plan.environment["OMP_NUM_THREADS"] == "2"
    assert vllm_runtime.PLUGIN_NAME not in plan.environment.values()


def test_without_compilation_it_is_eager(model: Path) -> None:
    plan = plan_uncontrolled(StockSettings("float32", compile=False), model)
    assert "--enforce-eager" in plan.command
    assert plan.environment["TORCHDYNAMO_DISABLE"] == "1"


def test_its_identity_promises_nothing_and_changes_with_its_settings(model: Path) -> None:
    stock = plan_uncontrolled(StockSettings("float32"), model).identity
    assert stock.fields["promises_equal_bytes"] is False
    assert stock.digest == plan_uncontrolled(StockSettings("float32"), model).identity.digest
    for other in (StockSettings("bfloat16"), StockSettings("float32", 1), StockSettings("float32", compile=False)):
        assert plan_uncontrolled(other, model).identity.digest != stock.digest


def test_changed_weights_are_refused(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"another")
    with pytest.raises(WeightsError):
        plan_uncontrolled(StockSettings("float32"), model)


def test_both_protocols_have_their_route_and_need_no_key(model: Path) -> None:
    plan = plan_uncontrolled(StockSettings("float32"), model)
    messages, chat = endpoint_of(plan, "anthropic"), endpoint_of(plan, "openai")
    assert (messages.base_url, chat.base_url) == (plan.url, f"{plan.url}/v1")
    assert {messages.key_variable, chat.key_variable} == {None}
    assert {messages.model, chat.model} == {MODEL_NAME}
