"""Generated cases: sizes, balance, variants, and the same bytes for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.longhorizon.case import DOMAINS, VARIANTS, Case, CaseError, DomainName
from benchmarks.longhorizon.dataset import case_files
from benchmarks.longhorizon.domains import domain_for
from benchmarks.longhorizon.generator import SEED, generate_case, generate_cases
from benchmarks.longhorizon.proofs import OBLIGATIONS, SMALL_TIGHT_CHARS, mandatory_chars
from benchmarks.longhorizon.ranking import count_places, rank_of_truth
from benchmarks.longhorizon.rules import MARGINS
from projection.canonical import sha256_hex

DIGESTS = {
    "mortgage-small": "9a06322a4b29ecfe055275abe257c884b674d07b285ca86d77fafb384f85689d",
    "mortgage-paper": "42d21a4c70e1e8df9d41a3a30f290a4c65e75b948088e27b3e98b51cfca4e65f",
    "claim-small": "f6d2f4baf47e963e721867404fa158532567e1ba3cc0db71627e9f4f39d70e25",
    "claim-paper": "5229442125b184fb8f74223b9cf3614fd04910e8c6956ceac464420d89eb167c",
    "prior_auth-small": "910ef4493545062c74a28f4ad00d25a7e9e082010e9c0dc6b6d6efda570ace68",
    "prior_auth-paper": "f567556d926aa1bfe4bd696ff900a7b9fb4c5a4dfac69fb839384d91ce8c9192",
}
"""SHA-256 over the three files of case 0, by domain and size; a change of texts or rules changes them on purpose."""


def digest(case: Case) -> str:
    return sha256_hex(b"".join(case_files(case).values()))


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("size", ["small", "paper"])
def test_the_same_seed_gives_the_same_bytes(domain: str, size: str) -> None:
    assert digest(generate_case(domain, size, 0)) == DIGESTS[f"{domain}-{size}"]


def test_another_seed_gives_another_case_and_the_count_does_not_matter() -> None:
    assert digest(generate_case("claim", "small", 3, seed=1)) != digest(generate_case("claim", "small", 3))
    last = list(generate_cases("claim", "small", count=4))[-1]
    assert digest(last) == digest(generate_case("claim", "small", 3))


@pytest.mark.parametrize("domain", DOMAINS)
def test_small_cases_have_16_to_22_events_and_fit_their_tightest_budget(domain: DomainName) -> None:
    for case in generate_cases(domain, "small", count=36):
        assert 16 <= len(case.events) <= 22
        assert 2_150 <= case.num_chars <= 2_650
        assert mandatory_chars(case) <= SMALL_TIGHT_CHARS
        assert set(case.truth.proofs) == set(OBLIGATIONS)


@pytest.mark.parametrize("domain", DOMAINS)
def test_paper_cases_have_82_to_96_events_and_26_to_28_thousand_characters(domain: DomainName) -> None:
    for case in generate_cases(domain, "paper", count=6):
        assert 82 <= len(case.events) <= 96
        assert 26_000 <= case.num_chars <= 28_000
        assert len({event.event.type for event in case.events}) >= 12


def test_long_cases_have_the_characters_that_were_asked_for() -> None:
    case = generate_case("prior_auth", "long", 0, chars=120_000)
    assert 117_600 <= case.num_chars <= 120_000


@pytest.mark.parametrize("domain", DOMAINS)
def test_outcomes_and_margins_come_in_equal_parts(domain: DomainName) -> None:
    outcomes = domain_for(domain, "small").outcomes
    cases = list(generate_cases(domain, "small", count=2 * len(outcomes) * len(MARGINS)))
    found = Counter((case.truth.outcome, case.truth.margin) for case in cases)
    assert found == {(outcome, margin): 2 for outcome in outcomes for margin in MARGINS}


@pytest.mark.parametrize("domain", DOMAINS)
def test_variants_are_the_same_case(domain: DomainName) -> None:
    full, oracle, reordered = (generate_case(domain, "paper", 2, variant=v) for v in ("full", "oracle", "reordered"))
    assert full.truth.facts == oracle.truth.facts == reordered.truth.facts
    assert full.truth.outcome == oracle.truth.outcome == reordered.truth.outcome
    by_id = {event.event.event_id: event.event for event in full.events}
    assert {event.event.event_id: event.event for event in reordered.events} == by_id
    assert [event.event for event in reordered.events] != [event.event for event in full.events]
    assert {event.event.event_id for event in oracle.events} == {field.event_id for field in full.truth.fields}
    assert all(by_id[event.event.event_id].text == event.text for event in oracle.events)
    assert not oracle.truth.superseded and not oracle.truth.distractors
    assert len(VARIANTS) == 3


def test_a_reordered_event_still_follows_what_it_links_to() -> None:
    case = generate_case("mortgage", "paper", 1, variant="reordered")
    place = {event.event.event_id: event.position for event in case.events}
    links = [(place[link.event_id], event.position) for event in case.events for link in event.event.links]
    assert links
    assert all(target < position for target, position in links)


@pytest.mark.parametrize(
    ("domain", "size", "variant", "count", "chars", "says"),
    [
        ("mortgages", "small", "full", 1, None, "unknown domain 'mortgages'"),
        ("claim", "huge", "full", 1, None, "unknown size 'huge'"),
        ("claim", "small", "best", 1, None, "unknown variant 'best'"),
        ("claim", "small", "full", 0, None, "0 cases"),
        ("claim", "long", "full", 1, None, "size long needs a number of characters"),
        ("claim", "small", "full", 1, 50_000, "no other size takes one"),
        ("claim", "long", "full", 1, 1_000_001, "30,000 to 1,000,000"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    domain: str, size: str, variant: str, count: int, chars: int | None, says: str
) -> None:
    with pytest.raises(CaseError, match=says):
        list(generate_cases(domain, size, count=count, variant=variant, chars=chars))


def test_the_seed_is_the_papers() -> None:
    assert SEED == 20260420


def test_the_ranking_finds_every_value_of_an_oracle_case_among_its_candidates() -> None:
    """Without distractors every true value is a candidate; the place is measured, never promised."""
    case = generate_case("claim", "paper", 0, variant="oracle")
    assert all(rank_of_truth(case).values())
    counted = count_places([case])
    assert counted["first"] <= counted["first_two"] <= counted["first_three"] <= counted["num_values"] == 11
