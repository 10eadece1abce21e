"""Which HTTP requests a deterministic server takes: the routes, and for each field what it may say.

Greedy decoding with the pinned seed, one answer a request, the whole prompt or none of it. Promises that it fails
closed: a route, a field or a value that is not listed here is refused, and so is JSON that two readers could read
differently. What a request leaves out, and vLLM would fill with a sampler, is written into it. Judges bytes; knows
nothing of the server that sends them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from projection.errors import RequestError

Says = Callable[[Any], bool]
"""Whether a field's value leaves decoding alone."""


def _is_number(*numbers: int) -> Says:
    return lambda value: type(value) in (int, float) and value in numbers


def _is_false(value: Any) -> bool:
    return value is False


def _is_empty(value: Any) -> bool:
    return value in ({}, [])


def _never(_value: Any) -> bool:
    return False


NEUTRAL: Mapping[str, Says] = {
    "temperature": _is_number(0),
    "n": _is_number(1),
    "best_of": _is_number(1),
    "use_beam_search": _is_false,
    "length_penalty": _is_number(1),
    "top_p": _is_number(1),
    "top_k": _is_number(0, -1),
    "min_p": _is_number(0),
    "presence_penalty": _is_number(0),
    "frequency_penalty": _is_number(0),
    "repetition_penalty": _is_number(1),
    "repetition_detection": _never,
    "logit_bias": _is_empty,
    "bad_words": _is_empty,
    "allowed_token_ids": _never,
    "watermarking": _is_false,
    "thinking_token_budget": _never,
    "priority": _is_number(0),
    "truncate_prompt_tokens": _never,
    "truncation_side": _never,
    "truncation": lambda value: value == "disabled",
    "prompt_embeds": _never,
    "kv_transfer_params": _never,
    "ec_transfer_params": _never,
    "vllm_xargs": _is_empty,
    "chat_template": _never,
    "background": _is_false,
    "previous_response_id": _never,
}
"""Fields that could change how a token is chosen or what is read, and the only values they may have beside null."""

# fmt: off
FREE = frozenset({
    "model", "stream", "stream_options", "user", "request_id", "session_id", "cache_salt", "metadata", "stop",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "max_tokens", "skip_special_tokens",
    "spaces_between_special_tokens", "add_special_tokens", "stream_interval", "logprobs", "top_logprobs",
    "prompt_logprobs", "logprob_token_ids", "return_tokens_as_token_ids", "return_token_ids", "response_format",
    "structured_outputs", "tools", "tool_choice", "parallel_tool_calls", "include_reasoning",
})
"""Fields that any route may have with any value: they choose what is asked and what is told, not how it is found."""
CHAT = frozenset({
    "messages", "max_completion_tokens", "reasoning_effort", "add_generation_prompt", "continue_final_message",
    "documents", "chat_template_kwargs", "return_prompt_text", "echo",
})
RESPONSES = frozenset({
    "input", "instructions", "max_output_tokens", "include", "reasoning", "store", "text", "prompt_cache_key",
    "service_tier",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Route:
    """A route that generates: its own fields, and whether vLLM reads a seed there."""

    fields: frozenset[str]
    has_seed: bool


GENERATING: Mapping[str, Route] = {
    "/v1/completions": Route(frozenset({"prompt", "echo"}), True),
    "/v1/chat/completions": Route(CHAT, True),
    "/v1/messages": Route(frozenset({"messages", "system", "stop_sequences", "output_config"}), False),
    "/v1/responses": Route(RESPONSES, False),
}
POST_ROUTES = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
GET_ROUTES = frozenset(
    {"/health", "/ping", "/version", "/load", "/metrics", "/metrics/", "/v1/models", "/openapi.json"}
)
"""Routes that generate nothing and change nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A request that was taken: the bytes to hand on, and the names of the fields that were written into them."""

    body: bytes
    set_fields: tuple[str, ...]


def is_harmless(method: str, path: str) -> bool:
    """Whether a request that no rule for fields applies to may pass."""
    if method == "OPTIONS":
        return True
    return path in (GET_ROUTES if method in ("GET", "HEAD") else POST_ROUTES if method == "POST" else ())


def judge(path: str, body: bytes, seed: int) -> Judged:
    """Hold the body of a request to a generating route against the profile.

    Raises:
        RequestError: it is refused; `fields["param"]` names the field where there is one.
    """
    route = GENERATING[path]
    request = parse_object(body)
    for name, value in request.items():
        _check_field(route, name, value, seed)
    wanted = {"temperature": 0} | ({"seed": seed} if route.has_seed else {})
    missing = {name: value for name, value in wanted.items() if request.get(name) is None}
    return Judged(_with_fields(body, request, missing), tuple(missing))


def _check_field(route: Route, name: str, value: Any, seed: int) -> None:
    if name == "seed" and route.has_seed:
        if value is not None and (type(value) is not int or value != seed):
            _refuse(name, f"the pinned seed of this server is {seed}: leave the field out")
    elif name in NEUTRAL:
        if value is not None and not NEUTRAL[name](value):
            _refuse(name, f"{_shown(value)} is not what this server decodes with (greedy, one answer): leave it out")
    elif name not in FREE and name not in route.fields:
        _refuse(name, "this field is not known here, so what it does to an answer is not either: leave it out")


def _refuse(param: str | None, reason: str) -> NoReturn:
    raise RequestError(f"{param}: {reason}" if param else reason, param=param)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request, if every reader reads the same in it.

    Raises:
        RequestError: not UTF-8, not a JSON object, a number that JSON does not have, or a name that stands twice.
    """
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"the body is not JSON: {exc}", param=None) from exc
    if not isinstance(value, dict):
        _refuse(None, "the body is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        _refuse(twice, "this name stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _with_fields(body: bytes, request: Mapping[str, Any], missing: Mapping[str, Any]) -> bytes:
    """The same object with more fields. Put in front of the others, which need not be written again."""
    if not missing:
        return body
    if missing.keys() & request.keys():  # there as null, which would stand beside the value
        return json.dumps({**request, **missing}).encode("utf-8")
    fields = json.dumps(missing)[1:-1] + (", " if request else "")
    return re.sub(rb"\{", lambda _found: b"{" + fields.encode("ascii"), body, count=1)
