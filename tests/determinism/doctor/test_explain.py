"""The doctor on records: each fault, planted in one setting, is named as that setting and nothing else.

The bench below stands where engines are started. It answers with the scripted engine, and puts one wrong bit into the
answer unless the setting is the right one, as a kernel would that depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from determinism.doctor.calls import RebuiltCall, rebuild_calls
from determinism.doctor.explain import Explanation, explain_record
from determinism.doctor.switches import Setting, find_switches
from determinism.doctor.trials import Bench
from determinism.suite.variants import SPECULATION
from determinism.surface import Surface
from inference.config import EngineConfig
from inference.scripted_engine import ScriptedEngine, ScriptedTokenizer
from projection.case import SealedCase, read_sealed_case
from projection.engine import EngineIdentity
from projection.errors import EngineError
from projection.log import find_record
from projection.record import AuditRecord
from projection.replay import Divergence
from tests.determinism.plain_config import PLAIN
from tests.projection.decided import (
    EditedStore,
    decide_small_case,
    fill_case,
    seal,
    with_call,
    with_changes,
    with_content,
)


def identity_of(config: EngineConfig) -> dict[str, Any]:
    """As vLLM's, as far as settings go, on the scripted tokenizer."""
    speculation = config.features.speculation
    return {
        "kind": "vllm",
        "tokenizer_digest": ScriptedTokenizer().digest,
        "plugin": {"invariant_attention.py": "0" * 64} if config.attention.invariant else None,
        "attention_backend": "INVARIANT" if config.attention.invariant else "CPU_ATTN",
        "versions": {"torch": "2.13.0"},
        "flags": {
            "enable_prefix_caching": config.features.prefix_caching,
            "enable_chunked_prefill": config.features.chunked_prefill,
            "enforce_eager": not config.features.compile,
            "max_num_batched_tokens": config.max_num_batched_tokens or config.max_model_len,
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_num_seqs,
            "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
            **({} if speculation is None else {"speculative_config": speculation.model_dump_json(exclude_none=True)}),
        },
        "environment": {"VLLM_CPU_ATTN_SPLIT_KV": "1" if config.attention.split_kv else "0"},
        "device": {"kind": "cpu", "num_threads": config.num_threads},
    }


def changed(**changes: Any) -> EngineConfig:
    return EngineConfig.model_validate(PLAIN.model_dump() | changes)


def features(**changes: Any) -> EngineConfig:
    return changed(features=PLAIN.features.model_dump() | changes)


STOCK = changed(attention={"invariant": False, "split_kv": True})


def one_ulp_off(surface: Surface) -> Surface:
    logprobs = [float.fromhex(logprob) for logprob in surface.logprobs]
    logprobs[3] = math.nextafter(logprobs[3], -math.inf)
    margins = [None if margin is None else float.fromhex(margin) for margin in surface.margins]
    return Surface.build(surface.token_ids, surface.text, logprobs, margins, surface.finish_reason)


@dataclass
class PlantedBench:
    """Gives the recorded bits under settings for which `is_right`, and one bit less under all others."""

    is_right: Callable[[Setting], bool]
    num_asked: int = 0

    def ask(self, setting: Setting, calls: Sequence[RebuiltCall]) -> list[Surface]:
        self.num_asked += 1
        if setting.config.features.compile:
            raise EngineError("there is no compiler here")
        alone = replace(setting, engine="scripted", beside_others=False)  # the scripted engine does not count who is
        honest = Bench(Path("unused")).ask(alone, calls)
        return honest if self.is_right(setting) else [one_ulp_off(surface) for surface in honest]

    def identity(self, setting: Setting) -> EngineIdentity:
        return EngineIdentity(identity_of(setting.config))


@pytest.fixture
def store() -> EditedStore:
    store = EditedStore()
    fill_case(store)
    return store


def recorded_on(store: EditedStore, config: EngineConfig, **changes: Any) -> SealedCase:
    """The small case, as if it had been decided by vLLM under this configuration."""
    engine = identity_of(config) | changes
    record = with_changes(decide_small_case(store).record, engine=engine)
    return sealed(store, with_content(record, engine_identity=EngineIdentity(engine).digest))


def sealed(store: EditedStore, record: AuditRecord) -> SealedCase:
    found = read_sealed_case(store, find_record(store, seal(store, record)))
    assert not isinstance(found, Divergence), found
    return found


def explain(case: SealedCase, bench: PlantedBench, config: EngineConfig = PLAIN) -> Explanation:
    said: list[str] = []
    return explain_record(case, Setting("vllm", config), ScriptedTokenizer(), bench, said.append)


RESTORED: dict[str, tuple[EngineConfig, EngineConfig, Callable[[Setting], bool], str]] = {
    "invariant attention": (PLAIN, STOCK, lambda s: s.config.attention.invariant, "off -> on"),
    "split KV": (STOCK, changed(attention={"invariant": False, "split_kv": False}),
                 lambda s: s.config.attention.split_kv, "off -> on"),
    "threads": (changed(num_threads=2), PLAIN, lambda s: s.config.num_threads == 2, "1 -> 2"),
    "chunked prefill": (changed(features=PLAIN.features.model_dump() | {"chunked_prefill": True},
                                max_num_batched_tokens=512), PLAIN,
                        lambda s: s.config.max_num_batched_tokens == 512, "off -> 512"),
    "prefix cache": (features(prefix_caching=True), PLAIN, lambda s: s.config.features.prefix_caching, "off -> on"),
    "speculation": (features(speculation=SPECULATION), PLAIN,
                    lambda s: s.config.features.speculation == SPECULATION, "off -> ngram"),
    "sizes": (changed(max_num_seqs=4), PLAIN, lambda s: s.config.max_num_seqs == 4, "(8192, 8, 2147483648, 8192) -> "
              "(8192, 4, 2147483648, 8192)"),
}  # fmt: skip


@pytest.mark.parametrize("name", RESTORED)
def test_the_identity_field_that_makes_the_difference_is_named(store: EditedStore, name: str) -> None:
    recorded, here, is_right, change = RESTORED[name]
    found = explain(recorded_on(store, recorded), PlantedBench(is_right), here)
    assert [(cause.name, cause.change) for cause in found.causes] == [(name, change)]
    assert found.verdict == "INCOMPARABLE"
    assert found.fixed == ()
    assert {divergence.call for divergence in found.divergences} == {"projection", "decision"}


def test_of_several_differing_fields_only_the_one_that_matters_is_named(store: EditedStore) -> None:
    here = changed(attention={"invariant": False, "split_kv": False}, num_threads=2, max_num_seqs=4,
                   features=PLAIN.features.model_dump() | {"prefix_caching": True})  # fmt: skip
    found = explain(recorded_on(store, PLAIN), PlantedBench(lambda s: s.config.num_threads == 1), here)
    assert [cause.name for cause in found.causes] == ["threads"]


OTHERS: dict[str, Callable[[Setting], bool]] = {
    "batch neighbours": lambda s: s.beside_others,
    "warm prefix cache": lambda s: s.is_warm,
    "invariant attention": lambda s: not s.config.attention.invariant,
    "threads": lambda s: s.config.num_threads == 2,
    "chunked prefill": lambda s: s.config.features.chunked_prefill,
    "prefix cache": lambda s: s.config.features.prefix_caching and not s.is_warm,
    "speculation": lambda s: s.config.features.speculation is not None,
}


@pytest.mark.parametrize("name", OTHERS)
def test_on_equal_identities_the_circumstance_that_brings_the_bits_back_is_named(store: EditedStore, name: str) -> None:
    found = explain(recorded_on(store, PLAIN), PlantedBench(OTHERS[name]))
    assert [cause.name for cause in found.causes] == [name]
    assert (found.verdict, found.differing_fields) == ("DRIFT", ())
    issues = {"batch neighbours": "vllm-project/vllm#51187", "speculation": "vllm-project/vllm#54506"}
    assert found.causes[0].issue == issues.get(name)


def test_a_grammar_that_was_ignored_is_named(store: EditedStore) -> None:
    """Recorded without one: the decision call's free words are what this engine says only without a grammar."""
    case = recorded_on(store, PLAIN)

    class Free(PlantedBench):
        def ask(self, setting: Setting, calls: Sequence[RebuiltCall]) -> list[Surface]:
            honest = Bench(Path("unused")).ask(replace(setting, engine="scripted", has_grammar=True), calls)
            return [one_ulp_off(surface) for surface in honest] if setting.has_grammar else honest

    assert [cause.name for cause in explain(case, Free(lambda s: True)).causes] == ["grammar"]


def test_a_library_that_differs_is_listed_and_never_named(store: EditedStore) -> None:
    case = recorded_on(store, PLAIN, versions={"torch": "2.12.0"})
    found = explain(case, PlantedBench(lambda s: False))
    assert (found.causes, found.fixed) == ((), ("versions.torch",))
    assert found.diagnosis is not None
    assert set(found.diagnosis.ruled_out) == {*OTHERS, "grammar"}


def test_weights_that_are_not_here_cannot_be_turned(store: EditedStore, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("DPM_HOME", str(tmp_path))
    here = identity_of(PLAIN) | {"weights": {"manifest_digest": "1" * 64}}
    recorded = identity_of(PLAIN) | {"weights": {"manifest_digest": "0" * 64}}
    found = find_switches(recorded, here, Setting("vllm", PLAIN))
    assert found.fixed == ("weights.manifest_digest",)
    assert "weights" not in [switch.name for switch in (*found.restoring, *found.others)]


def test_settings_of_a_server_are_not_turned() -> None:
    found = find_switches(identity_of(PLAIN), identity_of(STOCK), Setting("http://127.0.0.1:8000", PLAIN))
    assert [switch.name for switch in (*found.restoring, *found.others)] == ["batch neighbours", "warm prefix cache"]
    assert "plugin" in found.fixed


def test_an_answer_that_changes_from_run_to_run_blames_nothing(store: EditedStore) -> None:
    class Moody(PlantedBench):
        def ask(self, setting: Setting, calls: Sequence[RebuiltCall]) -> list[Surface]:
            surfaces = super().ask(setting, calls)
            return [one_ulp_off(surface) for surface in surfaces] if self.num_asked == 1 else surfaces

    found = explain(recorded_on(store, PLAIN), Moody(lambda s: True))
    assert found.diagnosis is not None
    assert (found.causes, found.diagnosis.is_repeatable) == ((), False)


def test_neighbours_that_an_engine_cannot_show_are_neither_named_nor_ruled_out(store: EditedStore) -> None:
    case = recorded_on(store, PLAIN)
    calls = rebuild_calls(case, ScriptedTokenizer())

    class Uncounted(PlantedBench):
        def ask(self, setting: Setting, calls: Sequence[RebuiltCall]) -> list[Surface]:
            return [one_ulp_off(s) for s in Bench(Path("unused")).ask(replace(setting, engine="scripted"), calls)]

    found = explain(case, Uncounted(lambda s: True))
    assert found.diagnosis is not None
    assert found.causes == ()
    assert "batch neighbours" not in found.diagnosis.ruled_out
    assert [(t.turned, t.detail) for t in found.diagnosis.trials if t.result == "not possible"] == [
        (("batch neighbours",), "this engine does not say what ran together, so no neighbour can be shown")
    ]
    with pytest.raises(EngineError, match="does not say what ran together"):
        Bench(Path("unused")).ask(Setting("scripted", PLAIN, beside_others=True), calls)


def test_a_setting_that_cannot_be_started_is_neither_named_nor_ruled_out(store: EditedStore) -> None:
    found = explain(recorded_on(store, features(compile=True)), PlantedBench(lambda s: False))
    assert found.diagnosis is not None
    assert "torch.compile" not in found.diagnosis.ruled_out
    assert [t.detail for t in found.diagnosis.trials if t.result == "not possible"] == ["there is no compiler here"]


def test_what_agrees_needs_no_doctor(store: EditedStore) -> None:
    bench = PlantedBench(lambda s: True)
    found = explain(recorded_on(store, PLAIN), bench)
    assert (found.verdict, found.divergences, found.diagnosis, bench.num_asked) == ("PASS", (), None, 1)


def test_the_divergence_shows_tokens_margins_and_distance(store: EditedStore) -> None:
    case = recorded_on(store, PLAIN)
    size = len(case.record.content.projection.token_ids)
    numbers = {"logprobs": [-0.5] * size, "margins": [0.25] * size}
    case = sealed(store, with_call(case.record, "projection", **numbers))
    found = explain(case, PlantedBench(lambda s: False))
    divergence = found.divergences[0]
    assert (divergence.call, divergence.first.index, divergence.flip) == ("projection", 0, None)
    seen = divergence.first.recorded
    assert seen is not None
    assert (seen.text, seen.logprob, seen.margin, seen.margin_ulp) == ("F", -0.5, 0.25, 2**22)
    assert divergence.first.logprob_ulp == 0x3F000000  # of float32 from 0 down to -0.5
    assert (divergence.before, divergence.recorded_after) == ("", "FACTS\n- mont")


def test_a_token_that_flips_is_shown_with_what_comes_after_it(store: EditedStore) -> None:
    case = recorded_on(store, PLAIN)
    token_ids = list(case.record.content.decision_call.token_ids)

    class Flipping(PlantedBench):
        def ask(self, setting: Setting, calls: Sequence[RebuiltCall]) -> list[Surface]:
            honest = Bench(Path("unused")).ask(replace(setting, engine="scripted"), calls)
            other = [*token_ids[:20], token_ids[20] ^ 1, *token_ids[21:]]
            surface = honest[-1]
            logprobs = [float.fromhex(logprob) for logprob in surface.logprobs]
            logprobs[19] = -(2.0**-149)
            return [*honest[:-1], Surface.build(other, surface.text, logprobs, [None] * len(other), "stop")]

    found = explain(case, Flipping(lambda s: True))
    (divergence,) = found.divergences
    assert divergence.flip is not None
    assert (divergence.call, divergence.first.index, divergence.flip.index, divergence.max_ulp) == (
        "decision",
        19,
        20,
        1,
    )
    text = bytes(token_ids[8:20]).decode()
    assert divergence.before == text
    assert divergence.recorded_after[1:] == divergence.found_after[1:]
    assert divergence.recorded_after[0] == chr(token_ids[20])


def test_a_record_that_does_not_hold_is_explained_without_an_engine(store: EditedStore) -> None:
    case = recorded_on(store, PLAIN)
    forged = sealed(store, with_changes(case.record, content_digest="0" * 64))
    bench = PlantedBench(lambda s: True)
    found = explain(forged, bench)
    assert (found.verdict, bench.num_asked) == ("DRIFT", 0)
    assert found.without_engine is not None
    assert found.without_engine.what == "content_digest"


def test_one_changed_prompt_byte_is_named_and_shown(store: EditedStore) -> None:
    """Somebody asked with another prompt than the log gives, recorded its honest answer, and fitted every digest."""
    case = recorded_on(store, PLAIN)
    recorded = case.record.content.decision_call
    prompt = list(recorded.prompt_token_ids)
    prompt[60] ^= 1
    grammar = explain_grammar(case)
    said = ScriptedEngine().generate(prompt, recorded.max_tokens, grammar)
    forged = with_call(case.record, "decision", prompt_token_ids=prompt, token_ids=list(said.token_ids),
                       text=said.text, logprobs=list(said.logprobs), margins=list(said.margins))  # fmt: skip
    forged = fitted_decision(store, forged, said.text)
    found = explain(sealed(store, forged), PlantedBench(lambda s: True))
    assert [cause.name for cause in found.causes] == ["prompt"]
    assert found.prompt is not None
    assert (found.prompt.call, found.prompt.index) == ("decision", 60)
    assert found.prompt.recorded[0] == chr(prompt[60])
    assert found.prompt.rebuilt[0] == chr(prompt[60] ^ 1)


def explain_grammar(case: SealedCase) -> Any:
    return rebuild_calls(case, ScriptedTokenizer())[1].grammar


def fitted_decision(store: EditedStore, record: AuditRecord, text: str) -> AuditRecord:
    from tests.projection.decided import with_decision

    token_ids = record.content.decision_call.token_ids
    return with_call(with_decision(store, record, text), "decision", token_ids=token_ids)
