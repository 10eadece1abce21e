"""The pure core: log, projection, decision, record and replay. Imports nothing else of ours."""

__version__ = "0.1.0"
