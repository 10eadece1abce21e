"""Enrolment of a running server: ask it for known answers, and see that they hold before they are kept.

A server whose answers depend on their neighbours is refused here, before anything is decided on it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from inference.api_key import key_headers
from inference.enrolment import Enrolment, KnownAnswer, enrol
from inference.request_profile import parse_object
from inference.selftest import check_known_answers, generate
from inference.tokenizer import PinnedTokenizer
from projection.engine import EngineIdentity
from projection.errors import EngineError, VerificationError

PROMPT_LENGTHS = (430, 471, 560)  # below 400 tokens stock kernels look invariant and are not
NUM_TOKENS = 16
TIMEOUT_S = 1800.0


def enrol_server(url: str, identity: EngineIdentity, tokenizer: PinnedTokenizer) -> Enrolment:
    """Known answers of the server at that address.

    Raises:
        EngineError: it fails, or its answers do not hold under other circumstances.
    """
    return asyncio.run(_enrol(url, identity, tokenizer))


async def _enrol(url: str, identity: EngineIdentity, tokenizer: PinnedTokenizer) -> Enrolment:
    import httpx

    headers = {**key_headers(os.environ), "x-dpm-accept": "degraded"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as client:

        async def ask(request: Mapping[str, Any]) -> Mapping[str, Any]:
            answer = await client.post("/v1/completions", json=dict(request))
            if answer.status_code != 200:
                raise EngineError(f"the server at {url} answers {answer.status_code}: {answer.text[:500]}")
            return parse_object(answer.content)

        known = []
        try:
            for prompt in known_prompts(tokenizer, int(identity.fields["flags"]["max_model_len"])):
                said = await generate(prompt, NUM_TOKENS, ask, secrets.token_hex(16))
                known.append(
                    KnownAnswer(prompt_token_ids=tuple(prompt), token_ids=said.token_ids, logprobs=said.logprobs)
                )
            await check_known_answers(known, ask, int(identity.fields["flags"]["max_num_seqs"]))
        except VerificationError as exc:
            raise EngineError(f"this engine is not deterministic and was not enrolled: {exc.message}") from exc
        except httpx.HTTPError as exc:
            raise EngineError(f"the server at {url} ended while it was enrolled: {exc!r}") from exc
    return enrol(identity, known)


def known_prompts(tokenizer: PinnedTokenizer, max_model_len: int) -> Iterator[list[int]]:
    """Prompts that differ from their first words on and fill half of the context at most."""
    for seed, length in enumerate(PROMPT_LENGTHS):
        rows = (
            f"Day {day}: the borrower of file {(seed * 7 + day * 13) % 101} reports {(seed * 991 + day * 37) % 9973} "
            f"dollars and a ratio of {(seed + day * 29) % 60} percent.\n"
            for day in range(seed, seed + length // 8)
        )
        text = f"File {seed * 1009}\n" + "".join(rows)
        yield tokenizer.encode_text(text)[: min(length, max_model_len // 2)]
