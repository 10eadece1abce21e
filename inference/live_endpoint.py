"""Where a live API is, which model is asked there, and the key that opens it.

A key comes from the environment only. Promises that it reaches the SDK's client and nothing else: no message, identity,
representation or result holds it, an error names the variable, and what a provider says when it refuses a key is not
repeated, because providers repeat parts of the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from inference.live_calls import Failure, LiveAnswer
from inference.live_models import Pins, Provider, find_pins
from projection.errors import ConfigurationError, DpmError, EngineError, RequestError

BASE_URLS: dict[Provider, str] = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
KEY_VARIABLES: dict[Provider, str] = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
NO_KEY = "none"  # what a server of ours, which asks for no key, is sent
KEY_LIKE = re.compile(r"\b(sk|key)-[\w*.\-]+")
MAX_MESSAGE_CHARS = 500
MAY_PASS = (408, 409, 429)  # and everything from 500
TIMEOUT_S = 600.0
MAX_RETRIES = 5


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model of one provider. key_variable: of the environment; None where the server asks for no key."""

    provider: Provider
    model: str
    base_url: str
    pins: Pins
    key_variable: str | None
    timeout_s: float = TIMEOUT_S
    max_retries: int = MAX_RETRIES

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"


def official_endpoint(provider: Provider, model: str, base_url: str | None = None) -> Endpoint:
    """A provider's own API, or one that speaks its protocol and takes its key at another address.

    Raises:
        ConfigurationError: the address is none, or holds a password.
    """
    url = base_url or BASE_URLS[provider]
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password or parts.query:
        raise ConfigurationError(
            "the base URL must be http:// or https://, a host and a path, without a user, password or query"
        )
    return Endpoint(provider, model, url, find_pins(provider, model), KEY_VARIABLES[provider])


def read_key(endpoint: Endpoint, environ: Mapping[str, str] = os.environ) -> str:
    """The key of the environment.

    Raises:
        ConfigurationError: there is none, or it cannot be one.
    """
    if endpoint.key_variable is None:
        return NO_KEY
    key = environ.get(endpoint.key_variable, "")
    if not key or not key.isascii() or any(character.isspace() or not character.isprintable() for character in key):
        found = "is not set" if not key else "holds no key: keys have no blanks and no characters beyond ASCII"
        raise ConfigurationError(
            f"the environment variable {endpoint.key_variable} {found}; {endpoint.name} needs a key",
            variable=endpoint.key_variable,
        )
    return key


@dataclass(frozen=True, slots=True)
class SdkErrors:
    """The error classes of one SDK; both SDKs have the same four."""

    status: type[Exception]
    timeout: type[Exception]
    connection: type[Exception]
    any: type[Exception]


def attempt(ask: Callable[[], LiveAnswer], endpoint: Endpoint, key: str, errors: SdkErrors) -> LiveAnswer | Failure:
    """One attempt; the foreign error ends here, so that no traceback can show what it holds."""
    try:
        return ask()
    except DpmError as error:
        return Failure(error)
    except errors.any as exc:
        failure = _failure(exc, endpoint, key, errors)
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        failure = Failure(EngineError(f"{endpoint.name} answers what cannot be read: {type(exc).__name__}"))
    return failure


def _failure(exc: Exception, endpoint: Endpoint, key: str, errors: SdkErrors) -> Failure:
    if isinstance(exc, errors.timeout):
        message = f"{endpoint.name} did not answer within {endpoint.timeout_s:g} s"
        return Failure(EngineError(message, timeout_s=endpoint.timeout_s), may_pass=True)
    if isinstance(exc, errors.connection):
        cause = type(exc.__cause__).__name__ if exc.__cause__ else "connection error"
        return Failure(
            EngineError(f"{endpoint.name} cannot be reached at {endpoint.base_url}, or broke off ({cause})"),
            may_pass=True,
        )
    if not isinstance(exc, errors.status):
        return Failure(EngineError(f"{endpoint.name} answers what cannot be read: {type(exc).__name__}"))
    return _refusal(exc, endpoint, key)


def _refusal(exc: Exception, endpoint: Endpoint, key: str) -> Failure:
    """What an HTTP status means, and who must act."""
    status = int(getattr(exc, "status_code"))  # noqa: B009  # known to the SDKs' classes, not to `Exception`
    said = _without_keys(str(getattr(exc, "message", "")), key)[:MAX_MESSAGE_CHARS]
    if status in (401, 403):
        where = f" in the environment variable {endpoint.key_variable}" if endpoint.key_variable else ""
        message = (
            f"{endpoint.name} refuses the key{where} (status {status}). Its answer is not shown: it may repeat "
            "parts of the key"
        )
        return Failure(ConfigurationError(message, variable=endpoint.key_variable, status=status))
    if status == 404:
        message = f"{endpoint.base_url} has no model {endpoint.model!r}, or no such route (status 404): {said}"
        return Failure(ConfigurationError(message, model=endpoint.model, status=status))
    if status in MAY_PASS or status >= 500:
        retry_after_s = _retry_after_s(exc)
        asked = "" if retry_after_s is None else f" and asks to wait {retry_after_s:g} s"
        error = EngineError(f"{endpoint.name} answers status {status}{asked}: {said}", status=status)
        return Failure(error, may_pass=True, is_rate_limit=status == 429, retry_after_s=retry_after_s)
    return Failure(RequestError(f"{endpoint.name} refuses the request (status {status}): {said}", status=status))


def _retry_after_s(exc: Exception) -> float | None:
    """Seconds that the server asks to wait; None where it says nothing that is a number of seconds."""
    headers = getattr(getattr(exc, "response", None), "headers", {})
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _without_keys(text: str, key: str) -> str:
    return KEY_LIKE.sub("[key]", text.replace(key, "[key]") if key != NO_KEY else text)
