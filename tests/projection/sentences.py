"""A Hypothesis strategy that draws sentences of a `Grammar`: any of them, the longest ones included."""

from __future__ import annotations

from hypothesis import strategies as st

from projection.grammar import Alt, Chars, Grammar, Lit, Node, Ref, Rep, Seq


def sentences(grammar: Grammar) -> st.SearchStrategy[str]:
    """Every sentence of the grammar can be drawn; long stretches are as likely as short ones."""
    return st.composite(lambda draw: _draw(draw, Ref(grammar.root), grammar))()


def _draw(draw: st.DrawFn, node: Node, grammar: Grammar) -> str:
    match node:
        case Lit(text):
            return text
        case Chars(members, min_count, max_count):
            size = draw(st.sampled_from([min_count, max_count]) | st.integers(min_count, max_count))
            return draw(st.text(alphabet=members, min_size=size, max_size=size))
        case Seq(parts):
            return "".join(_draw(draw, part, grammar) for part in parts)
        case Alt(options):
            return _draw(draw, options[draw(st.integers(0, len(options) - 1))], grammar)
        case Rep(inner, min_count, max_count):
            count = draw(st.sampled_from([min_count, max_count]) | st.integers(min_count, max_count))
            return "".join(_draw(draw, inner, grammar) for _ in range(count))
        case Ref(name):
            return _draw(draw, grammar.rules[name], grammar)
