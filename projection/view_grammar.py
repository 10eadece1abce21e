"""The closed world of a memory view: the grammar that the projection call decodes under, built from (E, T, B).

    FACTS
    - <field description>: <anchor> [i]   one line per field, or `unknown`
    - [i] <sentence of event i>           further facts, events in order, while the budget lasts
    REASONING
    - [i] <words>
    COMPLIANCE
    - [i] <provision>: <words>

Words are a sentence of event i, verbatim, or the model's own. In its own words every digit is part of an anchor of
event i, and an anchor stands between two words of a closed list, so that no neighbour can turn it into another value
("March" + "5" never becomes a date). The number of free lines is what B leaves room for at their longest: no sentence of
the grammar is longer than B characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from projection.anchors import Anchor, find_anchors
from projection.candidates import Candidate, rank_candidates
from projection.errors import BudgetTooSmallError, RequestError
from projection.events import LoggedEvent
from projection.grammar import Alt, Chars, Grammar, Node, Ref, Rep, alt, opt, seq
from projection.quotes import find_quotes
from projection.task import Task

UNKNOWN = "unknown"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + "".join(
    chr(code) for code in range(0xC0, 0x100) if code not in (0xD7, 0xF7)
)
WORD_MARKS = " '-/&"
INTRO_WORDS = (
    "is", "was", "are", "of", "at", "to", "from", "for", "on", "in", "by", "with", "under", "over", "about", "below",
    "above", "has", "had", "shows", "states", "reports", "totals", "exceeds", "equals", "number", "dated", "since",
)  # fmt: skip
NEXT_WORDS = ("and", "or", "with", "for", "per", "as", "which", "while", "but", "in", "on", "from", "to", "by", "of")
HEAD_CHARS, TAIL_CHARS, WORD_END_CHARS = 32, 12, 12
MAX_OWN_ANCHOR_CHARS = 24  # a longer anchor still fills a slot; in own words its room would cost every line
MAX_LINES = {"facts": 32, "reasoning": 12, "compliance": 12}
_FILL_ORDER = ("facts", "reasoning", "facts", "compliance")


@dataclass(frozen=True, slots=True)
class Profile:
    """What of the view's form is a choice. It is part of every record.

    slot_candidates: how many anchors a slot offers beside `unknown`; None offers every anchor of the field's type.
    """

    slot_candidates: int | None = 3


@dataclass(frozen=True, slots=True)
class ViewGrammar:
    """A grammar for views of at most `budget_chars` characters, and the free lines it leaves room for."""

    grammar: Grammar
    num_lines: Mapping[str, int]


def build_view_grammar(
    events: Sequence[LoggedEvent], task: Task, budget_chars: int, profile: Profile
) -> ViewGrammar:
    """Build the grammar of every view of `events` for `task` within `budget_chars`.

    Raises:
        BudgetTooSmallError: the mandatory lines alone can be longer; says the least budget that works.
        RequestError: there are no events.
    """
    if not events:
        raise RequestError("the case has no events; append some first")
    rules = _shared_rules(events, task, rank_candidates(events, task, profile.slot_candidates))
    counts = {"facts": 0, "reasoning": 1, "compliance": 1 if task.provisions else 0}
    grammar = _view(rules, events, task, counts)
    if grammar.max_chars > budget_chars:
        raise BudgetTooSmallError(
            f"a budget of {budget_chars} characters cannot hold the mandatory lines of this task; "
            f"the least that works is {grammar.max_chars}",
            budget_chars=budget_chars,
            min_budget_chars=grammar.max_chars,
        )
    counts = _fill(grammar, events[-1].position, counts, budget_chars)
    return ViewGrammar(_view(rules, events, task, counts), counts)


def own_words(values: Sequence[str]) -> Node:
    """Words, then at most one of `values` between two words of the closed lists, then words."""
    number = seq(" ", alt(*INTRO_WORDS), " ", alt(*values), opt(Ref("tail"))) if values else None
    return seq(Ref("head"), *([opt(number)] if number else []), opt(alt(".")))


def word_rules() -> dict[str, Node]:
    """The rules that `own_words` refers to.

    A stretch of words begins with a letter and ends at a word's end: behind its last character no new word begins, and
    the word it stands in may take `WORD_END_CHARS` letters more. No two marks stand side by side but a comma's space.
    """
    end = Chars(LETTERS, 0, WORD_END_CHARS)
    rules: dict[str, Node] = {"in_word_0": end}
    letter = Chars(LETTERS, 1, 1)
    for left in range(1, max(HEAD_CHARS, TAIL_CHARS)):
        begun = seq(Chars(WORD_MARKS, 1, 1), letter, Ref(f"in_word_{left - 2}")) if left >= 2 else None
        comma = seq(", ", letter, Ref(f"in_word_{left - 3}")) if left >= 3 else None
        goes_on = seq(letter, Ref(f"in_word_{left - 1}"))
        rules[f"in_word_{left}"] = Rep(Alt(tuple(n for n in (goes_on, begun, comma) if n is not None)), 0, 1)
    rules["head"] = seq(letter, Ref(f"in_word_{HEAD_CHARS - 1}"))
    rules["tail"] = seq(" ", alt(*NEXT_WORDS), " ", letter, Ref(f"in_word_{TAIL_CHARS - 1}"))
    return rules


def _shared_rules(
    events: Sequence[LoggedEvent], task: Task, candidates: Mapping[str, Sequence[Candidate]]
) -> dict[str, Node]:
    """The rules that do not depend on the budget: slots, the words of each event, cited lines."""
    rules = word_rules()
    for index, field in enumerate(task.fields):
        values = [f"{c.value} [{c.position}]" for c in candidates[field.name]]
        rules[f"slot{index}"] = seq(f"- {field.description}: ", alt(*values, UNKNOWN), "\n")
    for event in events:
        rules.update(_event_rules(event))
    cited = [seq(f"{e.position}] ", Ref(f"words{e.position}")) for e in events]
    rules["line"] = seq("- [", Alt(tuple(cited)), "\n")
    if task.provisions:
        rules["provision"] = alt(*(p.id for p in task.provisions))
        ruled = [seq(f"{e.position}] ", Ref("provision"), ": ", Ref(f"words{e.position}")) for e in events]
        rules["ruling"] = seq("- [", Alt(tuple(ruled)), "\n")
    return rules


def _event_rules(event: LoggedEvent) -> dict[str, Node]:
    """What may be said of one event: `quote<i>` (absent where it has none) and `words<i>`."""
    position, quotes = event.position, find_quotes(event.text)
    own = own_words(_short_values(find_anchors(event.text)))
    if not quotes:
        return {f"words{position}": own}
    return {f"quote{position}": alt(*quotes), f"words{position}": Alt((Ref(f"quote{position}"), own))}


def ordered_choice(name: str, items: Sequence[Node], count: int, *, fill: bool) -> dict[str, Node]:
    """Rules for one to `count` of the items, in their order and none twice; the start rule is `<name>_0_<count>`.

    `<name>_<i>_<n>` takes item i and then up to n - 1 later ones, or passes it by. fill: it goes on until it has `count`
    items or the last one.
    """
    rules: dict[str, Node] = {}
    for room in range(1, count + 1):
        for index, item in enumerate(items):
            last = index + 1 == len(items)
            rest = Ref(f"{name}_{index + 1}_{room - 1}")
            taken = item if last or room == 1 else seq(item, rest if fill else opt(rest))
            rules[f"{name}_{index}_{room}"] = taken if last else Alt((taken, Ref(f"{name}_{index + 1}_{room}")))
    return rules


def _short_values(anchors: Sequence[Anchor]) -> list[str]:
    return list(dict.fromkeys(a.value for a in anchors if len(a.value) <= MAX_OWN_ANCHOR_CHARS))


def _view(rules: Mapping[str, Node], events: Sequence[LoggedEvent], task: Task, counts: Mapping[str, int]) -> Grammar:
    positions = [e.position for e in events if f"quote{e.position}" in rules]
    facts = [seq(f"- [{position}] ", Ref(f"quote{position}"), "\n") for position in positions]
    num_facts = counts["facts"] if facts else 0
    root = seq(
        "FACTS\n",
        *(Ref(f"slot{index}") for index in range(len(task.fields))),
        *([Ref(f"facts_0_{num_facts}")] if num_facts else []),
        "REASONING\n",
        Rep(Ref("line"), 1, counts["reasoning"]),
        "COMPLIANCE\n",
        *([Rep(Ref("ruling"), 1, counts["compliance"])] if task.provisions else []),
    )
    return Grammar({"root": root, **rules, **ordered_choice("facts", facts, num_facts, fill=True)})


def _fill(grammar: Grammar, last_position: int, counts: Mapping[str, int], budget_chars: int) -> dict[str, int]:
    """Add free lines in turn as long as the longest sentence stays within the budget."""
    quotes = [grammar.longest(node) for name, node in grammar.rules.items() if name.startswith("quote")]
    costs = {
        "facts": max(quotes) + len(f"- [{last_position}] \n") if quotes else 0,
        "reasoning": grammar.longest(Ref("line")),
        "compliance": grammar.longest(Ref("ruling")) if "ruling" in grammar.rules else 0,
    }
    filled, left, grew = dict(counts), budget_chars - grammar.max_chars, True
    while grew:
        grew = False
        for section in _FILL_ORDER:
            if filled[section] < MAX_LINES[section] and 0 < costs[section] <= left:
                filled[section] += 1
                left -= costs[section]
                grew = True
    return filled
