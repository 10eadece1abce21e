"""The closed world of a memory view: the grammar that the projection call decodes under, built from (E, T, B).

    FACTS
    - <field description>: <anchor> [i]   one line per field, or `unknown`
    - [i] <sentence of event i>           further facts: one sentence out of each stretch of the log
    REASONING
    - [i] <words>
    COMPLIANCE
    - [i] <provision>: <words>

Words are a sentence of event i, verbatim, or the model's own. In its own words every digit is part of an anchor of
event i, and it stands at the end behind a word of a closed list, so that no neighbour can turn it into another value
("March" + "5" never becomes a date). The numbers of lines are what B leaves room for at their longest: no sentence of
the grammar is longer than B characters. Further facts run through the whole log in order, as many as fit: the log's
sentences are cut into that many equal stretches, and each line takes one. Where B has no room for a line of REASONING
and one of COMPLIANCE, the section stays empty: first COMPLIANCE, then both. The fields' lines are never left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from projection.anchors import Anchor, find_anchors
from projection.candidates import UNKNOWN, Candidates
from projection.errors import BudgetTooSmallError, RequestError
from projection.events import LoggedEvent
from projection.grammar import Alt, Chars, Grammar, Node, Ref, Rep, alt, opt, seq
from projection.quotes import find_quotes
from projection.task import Task

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + "".join(
    chr(code) for code in range(0xC0, 0x100) if code not in (0xD7, 0xF7)
)
WORD_MARKS = " '"
OPENERS = (
    "The",
    "This",
    "That",
    "These",
    "It",
    "Both",
    "No",
    "Since",
    "Because",
    "After",
    "Before",
    "Although",
    "As",
    "So",
)
INTRO_WORDS = (
    "is", "was", "are", "of", "at", "to", "from", "for", "on", "in", "by", "with", "under", "over", "about", "below",
    "above", "has", "had", "shows", "states", "reports", "totals", "exceeds", "equals", "number", "dated", "since",
)  # fmt: skip
STATEMENT_CHARS, WORD_END_CHARS = 36, 12
MAX_OWN_ANCHOR_CHARS = 24  # a longer anchor still fills a slot; in own words its room would cost every line
MAX_LINES = 12  # of REASONING, and of COMPLIANCE
LEAST_LINES = ((1, 1), (1, 0), (0, 0))  # of REASONING and COMPLIANCE: the first pair that the budget has room for


@dataclass(frozen=True, slots=True)
class Profile:
    """What of the view's form is a choice. It is part of every record.

    slot_candidates: how many anchors a slot offers beside `unknown`; None offers every anchor of the field's type.
    """

    slot_candidates: int | None = 3


def build_view_grammar(events: Sequence[LoggedEvent], task: Task, budget_chars: int, candidates: Candidates) -> Grammar:
    """Build the grammar of every view of `events` for `task` within `budget_chars`.

    candidates: what each field's slot offers beside `unknown`, as `rank_candidates` found them.

    Raises:
        BudgetTooSmallError: the mandatory lines alone can be longer; says the least budget that works.
        RequestError: there are no events.
    """
    if not events:
        raise RequestError("the case has no events; append some first")
    rules = _shared_rules(events, task, candidates)
    for num_reasoning, num_compliance in LEAST_LINES:
        least = _view(rules, events, task, num_reasoning, num_compliance, facts_chars=0)
        if least.max_chars <= budget_chars:
            break
    else:
        raise BudgetTooSmallError(
            f"a budget of {budget_chars} characters cannot hold the mandatory lines of this task; "
            f"the least that works is {least.max_chars}",
            budget_chars=budget_chars,
            min_budget_chars=least.max_chars,
        )
    if num_reasoning and num_compliance:
        more_reasoning, more_compliance = _more_lines(least, (budget_chars - least.max_chars) // 2)
        num_reasoning, num_compliance = 1 + more_reasoning, 1 + more_compliance
    facts_chars = budget_chars - _view(rules, events, task, num_reasoning, num_compliance, facts_chars=0).max_chars
    return _view(rules, events, task, num_reasoning, num_compliance, facts_chars=facts_chars)


def own_words(values: Sequence[str]) -> Node:
    """A statement: words, and at its end at most one of `values`, behind a word of a closed list."""
    number = seq(" ", alt(*INTRO_WORDS), " ", alt(*values)) if values else None
    return seq(Ref("statement"), *([opt(number)] if number else []), opt(alt(".")))


def word_rules() -> dict[str, Node]:
    """The rules that `own_words` refers to.

    A statement opens with a word of a closed list, which leaves other beginnings to sentences of the event. It ends at
    a word's end: behind its last character no new word begins, and the word it stands in may take `WORD_END_CHARS`
    letters more. No two marks stand side by side but a comma's space.
    """
    end = Chars(LETTERS, 0, WORD_END_CHARS)
    rules: dict[str, Node] = {"in_word_0": end}
    letter = Chars(LETTERS, 1, 1)
    for left in range(1, STATEMENT_CHARS):
        begun = seq(Chars(WORD_MARKS, 1, 1), letter, Ref(f"in_word_{left - 2}")) if left >= 2 else None
        comma = seq(", ", letter, Ref(f"in_word_{left - 3}")) if left >= 3 else None
        goes_on = seq(letter, Ref(f"in_word_{left - 1}"))
        rules[f"in_word_{left}"] = Rep(Alt(tuple(n for n in (goes_on, begun, comma) if n is not None)), 0, 1)
    rules["statement"] = seq(alt(*OPENERS), " ", letter, Ref(f"in_word_{STATEMENT_CHARS - 1}"))
    return rules


def _shared_rules(events: Sequence[LoggedEvent], task: Task, candidates: Candidates) -> dict[str, Node]:
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
    own = own_words(short_values(find_anchors(event.text)))
    if not quotes:
        return {f"words{position}": own}
    return {f"quote{position}": alt(*quotes), f"words{position}": Alt((Ref(f"quote{position}"), own))}


def short_values(anchors: Iterable[Anchor]) -> list[str]:
    """The distinct values that the model's own words may hold: short, and read alike wherever they stand."""
    values = dict.fromkeys(anchor.value for anchor in anchors if len(anchor.value) <= MAX_OWN_ANCHOR_CHARS)
    return [value for value in values if [anchor.value for anchor in find_anchors(f" {value}")] == [value]]


def _view(
    rules: Mapping[str, Node],
    events: Sequence[LoggedEvent],
    task: Task,
    num_reasoning: int,
    num_compliance: int,
    *,
    facts_chars: int,
) -> Grammar:
    quotes = [f"- [{event.position}] {quote}\n" for event in events for quote in find_quotes(event.text)]
    facts = [alt(*stretch) for stretch in cut_to_fit(quotes, facts_chars)]
    root = seq(
        "FACTS\n",
        *(Ref(f"slot{index}") for index in range(len(task.fields))),
        *facts,
        "REASONING\n",
        *([Rep(Ref("line"), 1, num_reasoning)] if num_reasoning else []),
        "COMPLIANCE\n",
        *([Rep(Ref("ruling"), 1, num_compliance)] if num_compliance and task.provisions else []),
    )
    return Grammar({"root": root, **rules})


def cut_to_fit(lines: Sequence[str], room_chars: int) -> list[Sequence[str]]:
    """Cut the lines into as many equal stretches as can each give one line to a room of `room_chars` characters."""
    longest = max(map(len, lines), default=0)
    count = min(room_chars // longest, len(lines)) if longest else 0
    while count < len(lines) and sum(max(map(len, s)) for s in _stretches(lines, count + 1)) <= room_chars:
        count += 1
    return _stretches(lines, count)


def _stretches(lines: Sequence[str], count: int) -> list[Sequence[str]]:
    return [lines[k * len(lines) // count : (k + 1) * len(lines) // count] for k in range(count)]


def _more_lines(grammar: Grammar, room_chars: int) -> tuple[int, int]:
    """How many REASONING and COMPLIANCE lines more fit into a room at their longest, in turn."""
    costs = [grammar.longest(Ref(name)) if name in grammar.rules else 0 for name in ("line", "ruling")]
    more = [0, 0]
    grew = True
    while grew:
        grew = False
        for section, cost in enumerate(costs):
            if 0 < cost <= room_chars and more[section] + 1 < MAX_LINES:
                more[section] += 1
                room_chars -= cost
                grew = True
    return more[0], more[1]
