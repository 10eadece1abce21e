"""Prove that replays give the same bytes, and guard it.

suite      asks the same questions under circumstances that should not matter: `run` holds the checks of `plan`
endpoints  what a suite can ask: an engine here, in a process of its own, or a server over its routes
report     what a suite found, for programs and for people
doctor     where an answer parts from another, and which setting makes it
gate       a team's own cases against approved answers; `determinism.pytest_plugin` does the same under pytest
compare    the pinned engine beside servers that nobody controls and live APIs
replay     a whole log replayed, in parallel and resumable

The modules beside these folders are their common words: a surface is one answer to the bit, a cell what one check found
on one workload, a verdict what it comes to.
"""
