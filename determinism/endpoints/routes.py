"""The routes of a deterministic server that `VllmServerEngine` does not take: in one piece, and as a chat.

Promises the surface that the server shows there, read as strictly as the engine reads its own route: an answer of
another identity, of another prompt, or that is not whole is an EngineError. What a chat cannot carry is a
NotPossibleError.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from determinism.endpoints.endpoint import EngineEndpoint, NotPossibleError, Request, VacuousError
from inference.counters import Counters
from inference.logprob_rows import Row, generated_rows, margin, read_logprob
from inference.tokenizer import PinnedTokenizer
from projection.engine import Completion, Score
from projection.errors import EngineError

if TYPE_CHECKING:
    import httpx

RouteName = Literal["completions", "chat"]
PATHS: Mapping[RouteName, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
TOKEN_PREFIX = "token_id:"


class RouteEndpoint:
    """An `Endpoint` that asks over one route, streamed or in one piece; all else is the server's engine."""

    def __init__(
        self,
        server: EngineEndpoint,
        client: httpx.Client,
        tokenizer: PinnedTokenizer,
        route: RouteName,
        is_streamed: bool,
    ) -> None:
        self._server, self._client, self._tokenizer = server, client, tokenizer
        self._route: RouteName = route
        self._is_streamed = is_streamed

    @property
    def identity(self) -> str:
        return self._server.identity

    @property
    def place(self) -> str:
        how = "streamed" if self._is_streamed else "whole"
        return f"{self._client.base_url} {self._route}, {how}"

    def ask(self, requests: Sequence[Request]) -> list[Completion]:
        with ThreadPoolExecutor(len(requests)) as threads:
            return list(threads.map(self._ask, requests))

    def ask_late(self, first: Request, later: Sequence[Request]) -> list[Completion]:
        return self._server.ask_late(first, later)

    def ask_beside_abort(self, request: Request, victim: Request) -> tuple[Completion, bool]:
        return self._server.ask_beside_abort(request, victim)

    def score(self, request: Request, token_ids: Sequence[int]) -> Score:
        return self._server.score(request, token_ids)

    def forget(self) -> None:
        """Each request has a cache salt of its own."""

    def counters(self) -> Counters | None:
        return self._server.counters()

    def reset_counters(self) -> None:
        self._server.reset_counters()

    def _ask(self, request: Request) -> Completion:
        import httpx

        started = time.perf_counter()
        try:
            pieces = list(self._pieces(request))
            return self._completion(request, pieces, time.perf_counter() - started)
        except httpx.HTTPError as exc:
            raise EngineError(f"{self.place}: the server failed: {exc!r}") from exc
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise EngineError(f"{self.place}: the answer cannot be read: {type(exc).__name__}: {exc}") from exc

    def _pieces(self, request: Request) -> Iterator[dict[str, Any]]:
        """The documents of an answer: one, or the chunks of a stream."""
        with self._client.stream("POST", PATHS[self._route], json=self._body(request)) as answer:
            if answer.status_code != 200 or not self._is_streamed:
                answer.read()
            self._require_good(answer)
            if not self._is_streamed:
                yield answer.json()
                return
            for line in answer.iter_lines():
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                if data:
                    yield json.loads(data)
        raise EngineError(f"{self.place}: the server ended in the middle of its answer")

    def _require_good(self, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            raise EngineError(f"{self.place}: the server answers {answer.status_code}: {answer.text[:500]}")
        found = answer.headers.get("x-dpm-identity", "none")
        if found != self.identity:
            raise EngineError(f"{self.place}: the engine identity {found} answers, but {self.identity} was asked")

    def _body(self, request: Request) -> dict[str, Any]:
        grammar = {} if request.grammar is None else {"structured_outputs": {"grammar": request.grammar.ebnf}}
        shared = {
            "temperature": 0,
            "max_tokens": request.max_tokens,
            "stop_token_ids": list(self._tokenizer.eos_token_ids),
            "stream": self._is_streamed,
            "cache_salt": secrets.token_hex(16),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **grammar,
        }
        if self._route == "completions":
            return {"prompt": list(request.prompt_token_ids), "logprobs": 2, **shared}
        system, user = request.turns
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return {"messages": messages, "logprobs": True, "top_logprobs": 2, **shared}

    def _completion(self, request: Request, pieces: Sequence[Mapping[str, Any]], wall_s: float) -> Completion:
        choices = [choice for piece in pieces for choice in piece["choices"]]
        token_ids = tuple(token_id for choice in choices for token_id in choice.get("token_ids") or ())
        rows = [row for choice in choices if choice.get("logprobs") for row in self._rows(choice)]
        prompt = _prompt_token_ids(pieces)
        self._require_plain_text(request, prompt)
        if len(rows) != len(token_ids) or tuple(prompt) != request.prompt_token_ids:
            raise EngineError(
                f"{self.place}: {len(token_ids)} tokens came with {len(rows)} log-probabilities, to a prompt of "
                f"{len(prompt)} tokens where {len(request.prompt_token_ids)} were asked: not the answer to this request"
            )
        if self._is_streamed and len(token_ids) > 1 and sum(bool(c.get("token_ids")) for c in choices) < 2:
            raise VacuousError(f"{self.place}: the answer came in one piece, so nothing was streamed")
        return Completion(
            token_ids=token_ids,
            text=self._tokenizer.decode(token_ids),
            finish_reason=next(choice["finish_reason"] for choice in choices if choice["finish_reason"]),
            logprobs=tuple(row[token_id] for token_id, row in zip(token_ids, rows, strict=True)),
            margins=tuple(margin(row) for row in rows),
            num_prompt_tokens=len(prompt),
            wall_s=wall_s,
        )

    def _require_plain_text(self, request: Request, prompt: Sequence[int]) -> None:
        """A chat reads the name of a special token in a text as that token; prompts of token ids do not."""
        asked, decode = request.prompt_token_ids, self._tokenizer.decode
        if self._route == "chat" and tuple(prompt) != asked and decode(prompt) == decode(asked):
            raise NotPossibleError("a chat cannot carry this prompt: its text spells the names of special tokens")

    def _rows(self, choice: Mapping[str, Any]) -> list[Row]:
        if self._route == "completions":
            return generated_rows(choice)
        return [_chat_row(entry) for entry in choice["logprobs"]["content"]]


def _chat_row(entry: Mapping[str, Any]) -> Row:
    """The two best tokens of one position, and the one that was taken."""
    stated = [*entry["top_logprobs"], entry]
    return {int(s["token"].removeprefix(TOKEN_PREFIX)): read_logprob(s["logprob"]) for s in stated}


def _prompt_token_ids(pieces: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where a route says which prompt it read: in the answer, or in its first choice."""
    first = pieces[0]
    found = first.get("prompt_token_ids") or first["choices"][0].get("prompt_token_ids")
    return list(found or [])
