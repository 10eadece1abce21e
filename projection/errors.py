"""The error tree: three branches, by who must act.

    DpmError
    ├── RequestError        the caller: events, task, budget, arguments
    │   ├── EventError          an event that cannot be taken (carries the line number)
    │   ├── TaskError           a task file that cannot be used (carries the line number)
    │   ├── BudgetTooSmallError the mandatory lines of the view need more characters
    │   ├── PromptTooLongError  the prompt does not fit the context; nothing is ever truncated
    │   ├── StalePositionError  somebody else appended first
    │   └── NotFoundError       unknown record, stream or model
    ├── EngineError         the operator: weights, configuration, the engine itself
    │   ├── ConfigurationError  a key, value or environment variable that is not allowed
    │   ├── WeightsError        a pinned file is missing, added or changed
    │   ├── IncompleteError     the completion ended on its token limit: it is not a view
    │   └── StorageError        the log cannot be opened or written
    └── VerificationError   the auditor: evidence that does not hold

Each error says what was found and what to do. `fields` carries the same facts for programs.
"""

from __future__ import annotations


class DpmError(Exception):
    """Base of every error this project raises on purpose."""

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, object] = fields


class RequestError(DpmError):
    """The caller must change what was asked."""


class EventError(RequestError):
    """An event that cannot be taken; `fields["line"]` is its 1-based line in the file."""


class TaskError(RequestError):
    """A task file that cannot be used; `fields["line"]` is 1-based where it is known."""


class BudgetTooSmallError(RequestError):
    """The budget is below the mandatory lines; `fields["min_budget_chars"]` is the least that works."""


class PromptTooLongError(RequestError):
    """The prompt does not fit; `fields` has `num_tokens_needed` and `num_tokens_available`."""


class StalePositionError(RequestError):
    """The stream moved on; `fields` has `expected_position` and `position`."""


class NotFoundError(RequestError):
    """Nothing of that name is here."""


class EngineError(DpmError):
    """The operator must act: weights, configuration, or the engine itself."""


class ConfigurationError(EngineError):
    """A configuration key, value or environment variable that is not allowed."""


class WeightsError(EngineError):
    """Pinned files are missing, added or changed."""


class IncompleteError(EngineError):
    """A completion that did not end by itself, hence is neither a view nor a decision."""


class StorageError(EngineError):
    """The log cannot be opened, read or written."""


class VerificationError(DpmError):
    """Evidence that does not hold; `fields` says where."""
