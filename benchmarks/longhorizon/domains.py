"""The domains by name and size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.longhorizon.case import DomainName, Size
from benchmarks.longhorizon.claim import claim_paper, claim_small
from benchmarks.longhorizon.mortgage import mortgage_paper, mortgage_small
from benchmarks.longhorizon.prior_auth import prior_auth_paper, prior_auth_small
from benchmarks.longhorizon.rules import Domain

_SMALL: Mapping[DomainName, Callable[[], Domain]] = {
    "mortgage": mortgage_small,
    "claim": claim_small,
    "prior_auth": prior_auth_small,
}
_PAPER: Mapping[DomainName, Callable[[], Domain]] = {
    "mortgage": mortgage_paper,
    "claim": claim_paper,
    "prior_auth": prior_auth_paper,
}


def domain_for(name: DomainName, size: Size) -> Domain:
    """The rules of a domain for cases of a size; long cases have the rules of paper-size ones."""
    return (_SMALL if size == "small" else _PAPER)[name]()
