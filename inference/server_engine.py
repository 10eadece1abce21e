"""`VllmServerEngine`: a deterministic server behind HTTP, as an engine. Token ids go in, token ids come out.

Promises the same tokens, log-probabilities and scores as the in-process engine of the same identity, or an EngineError:
a server that cannot be reached, ends in mid-call, answers another identity, is not approved, or says what cannot be
read, never yields half an answer. Prompts are made by the pinned tokenizer here, whose files must be the server's.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from inference.api_key import API_KEY_VARIABLE, key_headers
from inference.containment import contained
from inference.counters import Counters, parse_metrics
from inference.logprob_rows import Row, best_allowed, generated_rows, is_best, margin, read_logprob
from inference.request_checks import check_generate, check_score
from inference.server_answers import error_message, read_identity, reading, require_same
from inference.token_grammar import GrammarCompiler, TokenMatcher, known_token_ids
from inference.tokenizer import CONFIG_NAME, PinnedTokenizer
from projection.engine import Completion, EngineIdentity, FinishReason, Progress, Score, ScoredPosition
from projection.errors import ConfigurationError, EngineError
from projection.grammar import Grammar

if TYPE_CHECKING:
    import httpx

COMPLETIONS = "/v1/completions"
CONNECT_TIMEOUT_S = 10.0
IDENTITY_TIMEOUT_S = 60.0  # a document that is ready, from a machine that may be busy
READ_TIMEOUT_S = 900.0  # a long prompt's first token on a small machine
NUM_TOP = 20  # log-probabilities asked for at every position; open positions are asked for alone, with more
NUM_TOP_ALONE = 2000
Fallback = Callable[[], int | None]
"""The best allowed token of one position by generating; None where that cannot tell."""


class VllmServerEngine:
    """A `projection.engine.Engine`. Calls from several threads run side by side on the server."""

    def __init__(
        self,
        client: httpx.Client,
        tokenizer: PinnedTokenizer,
        identity: EngineIdentity,
        weights_dir: Path,
        cache_salt: str | None = None,
    ) -> None:
        self._client = client
        self._cache_salt = cache_salt
        self._max_num_running = 0
        self._tokenizer = tokenizer
        self._identity = identity
        self._weights_dir = weights_dir
        self._max_model_len = int(identity.fields["flags"]["max_model_len"])
        self._vocab_size = _vocab_size(weights_dir)
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None

    @classmethod
    def connect(
        cls,
        url: str,
        weights_dir: Path,
        expected_identity: str | None = None,
        transport: httpx.BaseTransport | None = None,
        cache_salt: str | None = None,
        identity_timeout_s: float = IDENTITY_TIMEOUT_S,
    ) -> VllmServerEngine:
        """Ask a server for its identity.

        cache_salt: whose prefix cache may be read, where the server has one.

        Raises:
            EngineError: it cannot be reached, is not one of ours, or its identity or tokenizer is not the expected one.
        """
        import httpx

        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            headers = key_headers(os.environ)
            client = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport, trust_env=False)
        except httpx.InvalidURL as exc:
            raise ConfigurationError(f"{url!r} is not an address of a server: {exc}", engine=url) from exc
        try:
            identity = read_identity(client, url, identity_timeout_s)
            tokenizer = PinnedTokenizer(weights_dir)
            require_same("identity", url, expected_identity or identity.digest, identity.digest)
            stated = str(identity.fields.get("tokenizer_digest"))
            require_same("tokenizer", url, tokenizer.digest, stated)
            with reading(url):
                return cls(client, tokenizer, identity, weights_dir, cache_salt)
        except BaseException:
            client.close()
            raise

    @property
    def identity(self) -> EngineIdentity:
        return self._identity

    @property
    def tokenizer(self) -> PinnedTokenizer:
        return self._tokenizer

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        grammar: Grammar | None,
        progress: Progress | None = None,
    ) -> Completion:
        """Generate greedily, under `grammar` where one is given; the answer is streamed."""
        check_generate(prompt_token_ids, max_tokens, self.max_model_len, self._vocab_size)
        started = time.perf_counter()
        request = {
            "prompt": list(prompt_token_ids),
            "max_tokens": max_tokens,
            "logprobs": 2,
            "stop_token_ids": list(self._tokenizer.eos_token_ids),
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if grammar is None else {"structured_outputs": {"grammar": grammar.ebnf}}),
        }
        token_ids: list[int] = []
        rows: list[Row] = []
        finish_reason, num_prompt_tokens = None, None
        with reading(self._url):
            for chunk in self._stream(request):
                if chunk.get("usage"):
                    num_prompt_tokens = chunk["usage"]["prompt_tokens"]
                for choice in chunk["choices"]:
                    token_ids += choice["token_ids"]
                    rows += generated_rows(choice)
                    finish_reason = choice["finish_reason"] or finish_reason
                if progress is not None and chunk["choices"]:
                    progress(len(token_ids), max_tokens)
            return self._completion(
                token_ids, rows, finish_reason, num_prompt_tokens, len(prompt_token_ids), time.perf_counter() - started
            )

    def _completion(
        self,
        token_ids: Sequence[int],
        rows: Sequence[Row],
        finish_reason: Any,
        num_prompt_tokens: int | None,
        num_asked: int,
        wall_s: float,
    ) -> Completion:
        if finish_reason not in ("stop", "length") or len(rows) != len(token_ids) or num_prompt_tokens != num_asked:
            raise EngineError(
                f"the server at {self._url} ended with {finish_reason!r} after {len(token_ids)} tokens and {len(rows)} "
                f"log-probabilities for {num_prompt_tokens} of {num_asked} prompt tokens: this is no whole answer"
            )
        reason: FinishReason = finish_reason
        return Completion(
            token_ids=tuple(token_ids),
            text=self._tokenizer.decode(token_ids),
            finish_reason=reason,
            logprobs=tuple(row[token_id] for token_id, row in zip(token_ids, rows, strict=True)),
            margins=tuple(margin(row) for row in rows),
            num_prompt_tokens=num_asked,
            wall_s=wall_s,
        )

    def score(
        self, prompt_token_ids: Sequence[int], completion_token_ids: Sequence[int], grammar: Grammar | None
    ) -> Score:
        """Score a recorded completion in one forward pass.

        The server tells the best `NUM_TOP` tokens of each position, without the grammar, which may allow none of them.
        So the best allowed token of a position is found in the first of these ways that tells it:

        1. the recorded token is likelier than all others, and allowed: it is the best;
        2. one of the row's tokens is the likeliest allowed one, and no token beyond the row can equal it;
        3. the completion is generated again, once for all positions, and agrees up to this one: what it says next;
        4. the position is asked for alone, for ever more log-probabilities, up to the whole vocabulary.
        """
        check_score(prompt_token_ids, completion_token_ids, self.max_model_len, self._vocab_size)
        started = time.perf_counter()
        token_ids = tuple(completion_token_ids)
        known = known_token_ids(token_ids, self._vocab_size)

        @cache
        def generated() -> tuple[int, ...]:
            return self.generate(prompt_token_ids, len(token_ids), grammar).token_ids

        def generated_at(index: int) -> int | None:
            said = generated()
            return said[index] if index < len(said) and said[:index] == token_ids[:index] else None

        with reading(self._url):
            rows = self._prefill(prompt_token_ids, known)
            with self._lock, contained("the grammar matcher"):
                matcher = self._grammars().matcher(grammar)
            positions = []
            for index, row in enumerate(rows):
                context = [*prompt_token_ids, *known[:index]]
                fallback = partial(generated_at, index)
                positions.append(self._position(token_ids[index], row, matcher, context, fallback))
        return Score(tuple(positions), len(prompt_token_ids), time.perf_counter() - started)

    def _prefill(self, prompt_token_ids: Sequence[int], token_ids: Sequence[int]) -> list[Row]:
        """One forward pass: a row for each token. The last is what comes after all the others."""
        request = {
            "prompt": [*prompt_token_ids, *token_ids[:-1]],
            "max_tokens": 1,
            "ignore_eos": True,
            "prompt_logprobs": NUM_TOP,
            "logprobs": NUM_TOP,
        }
        choice = self._post(request)["choices"][0]
        scored = choice["prompt_logprobs"][len(prompt_token_ids) :]
        rows = [{int(key): read_logprob(value["logprob"]) for key, value in entry.items()} for entry in scored]
        for token_id, row in zip(token_ids[:-1], rows, strict=True):
            if token_id not in row:
                raise KeyError(token_id)
        return [*rows, *generated_rows(choice)]

    def _position(
        self, token_id: int, row: Row, matcher: TokenMatcher, context: Sequence[int], generated: Fallback
    ) -> ScoredPosition:
        """Judge one position, and advance `matcher` past it.

        A token that is likelier than all others is the best of those that the grammar allows, if it allows it.
        """
        if token_id in row and is_best(row, token_id) and matcher.accept_allowed(token_id):
            return ScoredPosition(token_id, token_id, row[token_id])
        words: list[int] = matcher.next_bitmask()[0].tolist()
        matcher.accept(token_id)
        is_known = 0 <= token_id < self._vocab_size
        if token_id in row or not is_known:
            best = best_allowed(row, words, NUM_TOP, self._vocab_size)
            best = generated() if best is None else best
            if best is not None:
                return ScoredPosition(token_id, best, row[token_id] if is_known else -math.inf)
        return self._judge(token_id, words, row, context)

    def _judge(self, token_id: int, words: Sequence[int], row: Row, context: Sequence[int]) -> ScoredPosition:
        """Ask for more log-probabilities until the best allowed token is sure."""
        is_known = 0 <= token_id < self._vocab_size
        num_top = NUM_TOP
        while (best := best_allowed(row, words, num_top, self._vocab_size)) is None or (
            is_known and token_id not in row
        ):
            if num_top == self._vocab_size:
                raise EngineError(
                    f"two allowed tokens are equally likely after {len(context)} tokens, and log-probabilities cannot "
                    "tell which comes first: score this record with the engine in process"
                )
            num_top = self._vocab_size if num_top >= NUM_TOP_ALONE else min(NUM_TOP_ALONE, self._vocab_size)
            request = {"prompt": list(context), "max_tokens": 1, "ignore_eos": True, "logprobs": num_top}
            (row,) = generated_rows(self._post(request)["choices"][0])
        return ScoredPosition(token_id, best, row[token_id] if is_known else -math.inf)

    def counters(self) -> Counters:
        """What the server has done for all its clients; `max_num_running` as often as it was looked at here."""
        with reading(self._url):
            answer = self._client.get("/metrics")
            if answer.status_code != 200:
                raise EngineError(f"the server at {self._url} answers {answer.status_code} to /metrics")
            found = parse_metrics(answer.text)
        self._max_num_running = max(self._max_num_running, found.max_num_running)
        return replace(found, max_num_running=self._max_num_running)

    def reset_counters(self) -> None:
        """Begin `max_num_running` anew; all other counts go on."""
        self._max_num_running = 0

    def close(self) -> None:
        """Close the connection; the server serves on."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _url(self) -> str:
        return str(self._client.base_url)

    def _grammars(self) -> GrammarCompiler:
        if self._compiler is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self._weights_dir, local_files_only=True)
            self._compiler = GrammarCompiler(tokenizer, self._vocab_size, self._tokenizer.eos_token_ids)
        return self._compiler

    def _stream(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer, which ends as it should or raises."""
        with self._client.stream("POST", COMPLETIONS, json=self._asked(request)) as answer:
            if answer.status_code != 200:
                answer.read()
            self._require_good(answer)
            for line in answer.iter_lines():
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                if data:
                    yield self._checked(json.loads(data))
        raise EngineError(f"the server at {self._url} ended in the middle of its answer; nothing was kept. Ask again")

    def _post(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._client.post(COMPLETIONS, json=self._asked(request))
        self._require_good(answer)
        return self._checked(answer.json())

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        salt = {} if self._cache_salt is None else {"cache_salt": self._cache_salt}
        return {**request, **salt, "temperature": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}

    def _require_good(self, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            hint = f". Its key is read from {API_KEY_VARIABLE}" if answer.status_code == 401 else ""
            raise EngineError(
                f"the server at {self._url} answers {answer.status_code}: {error_message(answer)}{hint}",
                status=answer.status_code,
            )
        require_same("identity", self._url, self._identity.digest, answer.headers.get("x-dpm-identity", "none"))
        if answer.headers.get("x-dpm-determinism") != "approved":
            raise EngineError(f"the server at {self._url} is not approved; see {self._url}/dpm/selftest")

    def _checked(self, document: Any) -> dict[str, Any]:
        if not isinstance(document, dict) or "error" in document:
            raise EngineError(f"the server at {self._url} fails: {str(document)[:500]}")
        return document


def _vocab_size(weights_dir: Path) -> int:
    """Width of the model's logits."""
    try:
        config = json.loads((weights_dir / CONFIG_NAME).read_text(encoding="utf-8"))
        return int(config.get("text_config", config)["vocab_size"])
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as exc:
        raise ConfigurationError(f"{weights_dir / CONFIG_NAME} does not say vocab_size: {exc!r}") from exc
