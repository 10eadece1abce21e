"""The results folder of a suite: one journal whose rows are cells.

Promises what `reporting.journal` does: one writer, finished cells are kept, an interrupted run continues, another run's
folder is refused. Rows are not trusted: one whose content is no cell, or not the cell of its key, is refused by its
key, and so are cells of one engine that name different identities.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from determinism.cell import Cell, CellKey
from projection.errors import VerificationError
from reporting.journal import FILE_NAME, Journal, JournalError, Row, read_journal

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


def finished_cells(journal: Journal, planned: Collection[CellKey] | None = None) -> list[Cell]:
    """Cells of this run that are on the disk, in the order they were finished.

    planned: every cell that there may be; None where any may.

    Raises:
        JournalError: a row is no cell of its key, or was not planned.
    """
    cells = _read_cells(journal.path, journal.rows)
    for cell in cells:
        if planned is not None and cell.key not in planned:
            raise _damaged(journal.path, row_key(cell.key), "this run holds no such cell")
    return cells


def read_results(directory: str | PathLike[str]) -> tuple[Mapping[str, Any], list[Cell]]:
    """Parameters and finished cells of a results folder, whether or not its run is still going on.

    Raises:
        NotFoundError: there is none. JournalError: it is damaged, or of another version.
    """
    recorded = read_journal(directory, schema=SCHEMA, version=VERSION)
    return recorded.parameters, _read_cells(Path(directory) / FILE_NAME, recorded.rows)


def _read_cells(path: Path, rows: Mapping[str, Row]) -> list[Cell]:
    cells: list[Cell] = []
    identities: dict[str, str] = {}
    for key, row in rows.items():
        try:
            cell = Cell.from_value(row)
        except VerificationError as exc:
            raise _damaged(path, key, exc.message) from exc
        if row_key(cell.key) != key:
            raise _damaged(path, key, f"its content is of the cell {row_key(cell.key)!r}")
        if identities.setdefault(cell.engine, cell.engine_identity) != cell.engine_identity:
            raise _damaged(path, key, f"it names another identity of {cell.engine!r} than the cells before it")
        cells.append(cell)
    return cells


def _damaged(path: Path, key: str, problem: str) -> JournalError:
    message = f"{path}, row {key!r}: {problem}. Restore a copy, or begin in another folder"
    return JournalError("damaged", path, message, key=key)
