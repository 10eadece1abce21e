"""Foreign engines, contained: what they print and what they raise.

Owns the one rule that stdout belongs to our own results, C++ libraries included, and the list of errors that vLLM,
transformers and torch raise for bad models, bad arguments, lack of memory and failed kernels.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from projection.errors import DpmError, EngineError

FOREIGN_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, OSError, ImportError, MemoryError,
)  # fmt: skip


@contextmanager
def contained(what: str, *more_errors: type[Exception]) -> Iterator[None]:
    """Run foreign code: stdout goes to stderr, Python warnings are dropped, errors are wrapped once.

    Both hold for all threads of the process, for as long as any of them is inside.

    Raises:
        EngineError: `what` failed; `from` the foreign error. Errors of our own pass.
    """
    errors = (*FOREIGN_ERRORS, *more_errors)
    try:
        with _QUIET:
            yield
    except DpmError:
        raise
    except errors as exc:
        raise EngineError(f"{what} failed: {type(exc).__name__}: {exc}") from exc


class _Quiet:
    """A process that says nothing of its own: the first thread in makes it so, and the last one out gives all back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._undo = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._undo.enter_context(_stdout_on_stderr())
                self._undo.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._undo.close()


_QUIET = _Quiet()


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
