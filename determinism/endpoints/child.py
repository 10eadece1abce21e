"""An endpoint in a process of its own, over a socket pair: `python -m determinism.endpoints.child FD`.

vLLM allows one engine in a process, reads its settings once, and can end a process that it lives in. So every engine of
the suite lives in a child. Promises that a child that ends, or does not answer in time, is an EngineError with the last
lines of what it said, and that no child outlives its parent. Messages are pickled: both ends are this program.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from determinism.endpoints.endpoint import EngineEndpoint, Request
from inference.config import EngineConfig
from inference.counters import Counters
from projection.engine import Completion, Score
from projection.errors import DpmError, EngineError

ANSWER_TIMEOUT_S = 900.0
END_TIMEOUT_S = 20.0
NUM_TAIL_LINES = 20


class Child:
    """A process that can hold one engine at a time; `open_child` makes one and ends it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection, log: Path) -> None:
        self._process, self._connection, self._log = process, connection, log

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, engine: str, config: EngineConfig) -> ChildEndpoint:
        """Start an engine in the child; the one that it held is closed.

        Raises:
            DpmError: as `inference.engines.open_engine`. EngineError: the child ended.
        """
        identity = self.call("open", engine, config)
        return ChildEndpoint(self, identity)

    def call(self, method: str, *arguments: Any) -> Any:
        """Have the child do it; its errors are raised here.

        Raises:
            EngineError: the child ended, or does not answer.
        """
        try:
            self._connection.send((method, arguments))
            if not self._connection.poll(ANSWER_TIMEOUT_S):
                self._process.kill()
                raise EngineError(
                    f"an engine did not answer in {ANSWER_TIMEOUT_S:.0f} s and was ended; see {self._log}"
                )
            result = self._connection.recv()
        except (EOFError, OSError) as exc:
            raise self._ended() from exc
        if isinstance(result, DpmError):
            raise result
        return result

    def _ended(self) -> EngineError:
        self._process.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_TAIL_LINES:]
        tail = "\n".join(f"  {line}" for line in lines)
        code = self._process.returncode
        return EngineError(f"the process of an engine ended (exit {code}). Its last lines:\n{tail}", returncode=code)


@contextmanager
def open_child(environment: Mapping[str, str], log: Path) -> Iterator[Child]:
    """Start a child and end it.

    environment: without what an engine sets. log: what it says.

    Raises:
        EngineError: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "determinism.endpoints.child", str(theirs.fileno())]
    with ours, theirs:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as sink:
                process = subprocess.Popen(
                    command,
                    env=dict(environment),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                )
        except OSError as exc:
            raise EngineError(f"a process for an engine cannot be started: {exc}") from exc
        theirs.close()
        connection = Connection(ours.detach())
    with process:
        try:
            yield Child(process, connection, log)
        finally:
            connection.close()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A child whose parent has closed its connection ends by itself, unless it is in mid-call."""
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


class ChildEndpoint:
    """A `determinism.endpoints.endpoint.Endpoint` in a child."""

    def __init__(self, child: Child, identity: str) -> None:
        self._child, self._identity = child, identity

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def place(self) -> str:
        return f"process {self._child.pid}"

    def ask(self, requests: Sequence[Request]) -> list[Completion]:
        answers: list[Completion] = self._child.call("ask", list(requests))
        return answers

    def ask_late(self, first: Request, later: Sequence[Request]) -> list[Completion]:
        answers: list[Completion] = self._child.call("ask_late", first, list(later))
        return answers

    def ask_beside_abort(self, request: Request, victim: Request) -> tuple[Completion, bool]:
        answer: tuple[Completion, bool] = self._child.call("ask_beside_abort", request, victim)
        return answer

    def score(self, request: Request, token_ids: Sequence[int]) -> Score:
        score: Score = self._child.call("score", request, list(token_ids))
        return score

    def forget(self) -> None:
        self._child.call("forget")

    def counters(self) -> Counters | None:
        counters: Counters | None = self._child.call("counters")
        return counters

    def reset_counters(self) -> None:
        self._child.call("reset_counters")


def serve(connection: Connection) -> None:
    """Answer calls until the parent goes away."""
    from inference.engines import open_engine

    with ExitStack() as held:
        endpoint: EngineEndpoint | None = None
        while True:
            try:
                method, arguments = connection.recv()
            except EOFError:
                return
            try:
                if method == "open":
                    held.close()
                    engine = held.enter_context(open_engine(*arguments))
                    endpoint = EngineEndpoint(engine, f"process {os.getpid()}")
                    result: Any = endpoint.identity
                else:
                    result = getattr(endpoint, method)(*arguments)
            except DpmError as exc:
                result = exc
            connection.send(result)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
