"""A suite that waits to be killed: names each finished cell on stdout, and after the fifth waits for ever."""

from __future__ import annotations

import sys
import threading
from itertools import islice
from pathlib import Path

from determinism.suite.results import open_results
from determinism.suite.run import run
from tests.determinism.suite.simulated_lane import make_plan

if __name__ == "__main__":
    with open_results(Path(sys.argv[1]), {"a": "run"}) as journal:
        for cell in islice(run([make_plan()], journal), 5):
            print(cell.check, cell.workload, flush=True)
        threading.Event().wait()
