"""The results folder of a suite: one journal whose rows are cells.

Promises what `reporting.journal` does: one writer, finished cells are kept, an interrupted run continues, another run's
folder is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from determinism.cell import Cell, CellKey
from reporting.journal import Journal, read_journal

SCHEMA = "dpm/determinism-results"
VERSION = 1


def open_results(directory: str | PathLike[str], parameters: Mapping[str, Any]) -> Journal:
    """Begin or continue a run; parameters: everything that must be equal for it to be continued.

    Raises:
        JournalError: another suite writes there, or the folder holds another run. StorageError: it cannot be used.
    """
    return Journal.open(directory, schema=SCHEMA, version=VERSION, parameters=parameters)


def row_key(key: CellKey) -> str:
    """The key of a cell's row."""
    return " | ".join([key.engine, key.check, key.workload, *([key.control] if key.control else [])])


def finished_cells(journal: Journal) -> list[Cell]:
    """Cells of this run that are on the disk, in the order they were finished; raises as `Cell.from_value`."""
    return [Cell.from_value(row) for row in journal.rows.values()]


def read_results(directory: str | PathLike[str]) -> tuple[Mapping[str, Any], list[Cell]]:
    """Parameters and finished cells of a results folder, whether or not its run is still going on.

    Raises:
        NotFoundError: there is none. JournalError, VerificationError: it is damaged, or of another version.
    """
    recorded = read_journal(directory, schema=SCHEMA, version=VERSION)
    return recorded.parameters, [Cell.from_value(row) for row in recorded.rows.values()]
