"""The key of a vLLM server, from the variable that vLLM reads it from; never stored, logged or part of an identity.

A server that was started with the variable set answers whoever sends the key. Its self-test, `dpm engine enroll` and
`dpm ... --engine http://...` send it from the same variable.
"""

from __future__ import annotations

from collections.abc import Mapping

API_KEY_VARIABLE = "VLLM_API_KEY"


def key_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """The header that a request needs; none where no key is set."""
    key = environ.get(API_KEY_VARIABLE, "")
    return {"authorization": f"Bearer {key}"} if key else {}
