"""Canonical bytes and digests: the one place that turns a value into bytes to be hashed.

Canonical JSON is RFC 8785. A digest is SHA-256 over a domain tag, a zero byte and the canonical bytes, so that bytes
of one kind can never be presented as another kind. Strings that are not valid Unicode have no canonical form.
"""

from __future__ import annotations

import hashlib
from json.encoder import encode_basestring
from typing import Any

import rfc8785

from projection.errors import RequestError

MAX_SAFE_INTEGER = 2**53 - 1


def canonical_bytes(value: Any) -> bytes:
    """Return the RFC 8785 bytes of a JSON value.

    Raises:
        RequestError: NaN, infinity, integers beyond 2**53-1, lone surrogates, or a type that JSON lacks.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as exc:
        raise RequestError(f"this value has no canonical JSON form (RFC 8785): {exc}") from exc


def canonical_string(text: str) -> str:
    """The RFC 8785 form of one string (3.2.2.2), for bytes that are written member by member because there are many."""
    return encode_basestring(text)


def sha256_hex(data: bytes) -> str:
    """SHA-256 as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def tagged_digest(tag: str, *parts: bytes) -> str:
    """SHA-256 over `tag`, a zero byte and the parts; 64 hex digits. Parts must have a fixed length but for the last."""
    digest = hashlib.sha256(tag.encode("ascii") + b"\0")
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def value_digest(tag: str, value: Any) -> str:
    """The tagged digest of a value's canonical bytes."""
    return tagged_digest(tag, canonical_bytes(value))
