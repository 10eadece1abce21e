"""Foreign engines, contained: what they print and what they raise.

Owns the one rule that stdout belongs to our own results, C++ libraries included, and the list of errors that vLLM,
transformers and torch raise for bad models, bad arguments, lack of memory and failed kernels.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from projection.errors import DpmError, EngineError

FOREIGN_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, OSError, ImportError, MemoryError,
)  # fmt: skip


@contextmanager
def contained(what: str, *more_errors: type[Exception]) -> Iterator[None]:
    """Run foreign code: stdout goes to stderr, Python warnings are dropped, errors are wrapped once.

    Not for two threads at a time.

    Raises:
        EngineError: `what` failed; `from` the foreign error. Errors of our own pass.
    """
    errors = (*FOREIGN_ERRORS, *more_errors)
    try:
        with _stdout_on_stderr(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except DpmError:
        raise
    except errors as exc:
        raise EngineError(f"{what} failed: {type(exc).__name__}: {exc}") from exc


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    python_stdout = sys.stdout
    python_stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = python_stdout
        os.dup2(saved, 1)
        os.close(saved)
