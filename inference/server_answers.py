"""What an answer of a deterministic server must be before it is read: there, whole, and of the expected identity.

Everything else, from a refused connection to a document that is not what it should be, is an EngineError that says what
to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from projection.engine import EngineIdentity
from projection.errors import EngineError

if TYPE_CHECKING:
    import httpx


def read_identity(client: httpx.Client, url: str, timeout_s: float) -> EngineIdentity:
    """The identity that a server states.

    Raises:
        EngineError: it does not answer in time, is none of ours, or its digest is not that of its fields.
    """
    with reading(url):
        answer = client.get("/dpm/identity", timeout=timeout_s)
        if answer.status_code != 200:
            raise EngineError(
                f"{url} answers {answer.status_code} to /dpm/identity: it is not a server that 'dpm engine serve' "
                "started, and what it runs on is unknown"
            )
        document = answer.json()
        identity = EngineIdentity(document["identity"])
        require_same("identity", url, identity.digest, document["engine_identity"])
        return identity


def require_same(what: str, url: str, expected: str, found: str) -> None:
    """Raises:
    EngineError: the server has another identity, or another `what`, than is expected.
    """
    if expected != found:
        raise EngineError(
            f"the server at {url} has the {what} {found}, but {expected} is expected: it runs on other weights, "
            "libraries, flags or hardware. Ask the server of that identity",
            expected=expected,
            found=found,
        )


def error_message(answer: httpx.Response) -> str:
    """What a refusal says, as vLLM writes it or as it stands."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return answer.text[:500]


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Errors of the connection, and answers that cannot be read, become EngineError."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as exc:
        raise EngineError(
            f"the server at {url} does not answer in time ({type(exc).__name__}); nothing was kept"
        ) from exc
    except httpx.ConnectError as exc:
        raise EngineError(f"no server answers at {url}: {exc}. Start it with: dpm engine serve") from exc
    except httpx.HTTPError as exc:
        raise EngineError(
            f"the server at {url} ended in mid-call ({exc!r}); nothing was kept. Start it, and ask again"
        ) from exc
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise EngineError(f"the server at {url} answers what cannot be read: {type(exc).__name__}: {exc}") from exc
