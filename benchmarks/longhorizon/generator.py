"""The generator: an outcome first, facts for it second, documents third, proof last.

A case is named by (seed, domain, size, index) alone: the same name gives the same bytes on every machine, whatever else
is generated beside it. An attempt that cannot be written or proved is drawn again from the next sub-seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.longhorizon.author import Author
from benchmarks.longhorizon.case import (
    DOMAINS,
    SIZES,
    VARIANTS,
    Case,
    CaseError,
    DomainName,
    ObligationError,
    Size,
    Variant,
)
from benchmarks.longhorizon.domains import domain_for
from benchmarks.longhorizon.draw import Draw
from benchmarks.longhorizon.proofs import prove
from benchmarks.longhorizon.rules import MARGINS, Domain, Target
from benchmarks.longhorizon.sizes import LAYOUTS
from benchmarks.longhorizon.texts import NoCleanTextError
from benchmarks.longhorizon.variants import arrange

SEED = 20_260_420  # the paper's
MAX_ATTEMPTS = 200


def generate_cases(
    domain: str, size: str, *, count: int, seed: int = SEED, variant: str = "full", chars: int | None = None
) -> Iterator[Case]:
    """The first `count` cases of a domain, each proved.

    chars: characters of a long trajectory; of no other size.

    Raises:
        CaseError: unknown domain, size or variant, or a length that does not go with the size.
    """
    check_request(domain, size, variant, count, chars)
    for index in range(count):
        yield generate_case(domain, size, index, seed=seed, variant=variant, chars=chars)


def generate_case(
    domain: str, size: str, index: int, *, seed: int = SEED, variant: str = "full", chars: int | None = None
) -> Case:
    """One case by its name, proved.

    Raises:
        CaseError: as `generate_cases`; also where no attempt could be written, which a change of the texts can cause.
    """
    named_domain, named_size, named_variant = check_request(domain, size, variant, index + 1, chars)
    rules, layout = domain_for(named_domain, named_size), LAYOUTS[named_size]
    if chars is not None:
        layout = layout.with_chars(chars)
    key = (seed, domain, size, chars or 0, index)
    target = _target(rules, seed, size, index)

    def write(attempt: int) -> Case:
        return Author(Draw(*key, attempt), rules, named_size, layout, target).write(seed, index, named_domain)

    full = _first_proved(write)
    if named_variant == "full":
        return full
    return _first_proved(lambda attempt: arrange(full, named_variant, Draw(*key, named_variant, attempt)))


def _first_proved(write: Callable[[int], Case]) -> Case:
    """The first attempt that can be written and proved, with its proofs."""
    problem = ""
    for attempt in range(MAX_ATTEMPTS):
        try:
            case = write(attempt)
            return replace(case, truth=replace(case.truth, proofs=prove(case)))
        except (NoCleanTextError, ObligationError) as exc:
            problem = str(exc)
    raise CaseError(f"no case could be written in {MAX_ATTEMPTS} attempts; the last failed so: {problem}")


def check_request(
    domain: str, size: str, variant: str, count: int, chars: int | None
) -> tuple[DomainName, Size, Variant]:
    """The names as the closed lists have them.

    Raises:
        CaseError: as `generate_cases`.
    """
    named_domain = next((name for name in DOMAINS if name == domain), None)
    named_size = next((name for name in SIZES if name == size), None)
    named_variant = next((name for name in VARIANTS if name == variant), None)
    if named_domain is None:
        raise CaseError(f"unknown domain {domain!r}: use one of {', '.join(DOMAINS)}", domain=domain)
    if named_size is None:
        raise CaseError(f"unknown size {size!r}: use one of {', '.join(SIZES)}", size=size)
    if named_variant is None:
        raise CaseError(f"unknown variant {variant!r}: use one of {', '.join(VARIANTS)}", variant=variant)
    if count < 1 or count > 10_000:
        raise CaseError(f"{count} cases were asked for; 1 to 10,000 can be", count=count)
    if (size == "long") != (chars is not None):
        raise CaseError("size long needs a number of characters, and no other size takes one", size=size, chars=chars)
    if chars is not None and not 30_000 <= chars <= 1_000_000:
        raise CaseError(f"{chars} characters were asked for; a long case has 30,000 to 1,000,000", chars=chars)
    return named_domain, named_size, named_variant


def _target(domain: Domain, seed: int, size: str, index: int) -> Target:
    """Outcomes and margins in equal parts: each run of outcomes x margins cases has every pair once, mixed."""
    pairs = [Target(outcome, margin) for outcome in domain.outcomes for margin in MARGINS]
    block, place = divmod(index, len(pairs))
    return Draw(seed, domain.name, size, "targets", block).shuffled(pairs)[place]
