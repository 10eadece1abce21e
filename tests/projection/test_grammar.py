"""Grammars as values: how long their sentences can be, and the text that a compiler is given."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from projection.grammar import Alt, Chars, Grammar, Lit, Node, Ref, Rep, Seq, alt, opt, seq
from tests.inference.engine_contract import to_regex
from tests.projection.sentences import sentences

_texts = st.text(alphabet='ab]^-\\"\n\u00e9[', max_size=4)
_leaves: st.SearchStrategy[Node] = st.one_of(
    _texts.map(Lit),
    st.builds(
        lambda members, least, more: Chars(members, least, least + more),
        st.text(alphabet="abc]^-\\\u00e9", min_size=1, max_size=4),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
)


def _extend(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.lists(nodes, max_size=3).map(lambda parts: Seq(tuple(parts))),
        st.lists(nodes, min_size=1, max_size=3).map(lambda options: Alt(tuple(options))),
        st.builds(
            lambda node, least, more: Rep(node, least, least + more), nodes, st.integers(0, 2), st.integers(0, 2)
        ),
    )


nodes = st.recursive(_leaves, _extend, max_leaves=8)
grammars = st.builds(lambda root, rule: Grammar({"root": Seq((root, Ref("rule"))), "rule": rule}), nodes, nodes)


@given(st.data(), grammars)
@settings(max_examples=60)
def test_every_sentence_keeps_the_bound_and_is_one_of_the_language(data: st.DataObject, grammar: Grammar) -> None:
    sentence = data.draw(sentences(grammar))
    assert len(sentence) <= grammar.max_chars
    assert re.fullmatch(to_regex(grammar), sentence)


def test_the_bound_is_reached_by_the_longest_sentence() -> None:
    line = seq("- ", Chars("ab", 1, 5), opt(alt("!", "!?")), "\n")
    grammar = Grammar({"root": seq("TOP\n", Rep(Ref("line"), 0, 3), alt("end", "the end")), "line": line})
    longest = "TOP\n" + "- aaaaa!?\n" * 3 + "the end"
    assert grammar.max_chars == len(longest)
    assert re.fullmatch(to_regex(grammar), longest)
    assert grammar.longest(Ref("line")) == len("- aaaaa!?\n")


def test_rules_may_refer_to_later_rules_in_long_chains() -> None:
    """As the words of a view do: one rule for each character."""
    rules: dict[str, Node] = {f"r{n}": seq("a", Ref(f"r{n + 1}")) for n in range(3000)}
    assert Grammar({"root": Ref("r0"), **rules, "r3000": alt("b", "")}).max_chars == 3001


def test_a_grammar_is_printed_so() -> None:
    grammar = Grammar(
        {
            "root": seq('a "b"\n\\', Ref("one"), Seq(()), opt(Ref("two"))),
            "one": alt("x", seq("y", Lit("\u00e9"))),
            "two": Rep(Chars("edcba]^-\\", 1, 4), 2, 3),
        }
    )
    assert grammar.ebnf == (
        'root ::= "a \\"b\\"\\n\\\\" one "" (two)?\n'
        'one ::= ("x" | "y" "\u00e9")\n'
        "two ::= ([\\-\\\\-\\^a-e]{1,4}){2,3}\n"
    )


def test_the_digest_is_that_of_the_printed_rules() -> None:
    one, same, other = (Grammar({"root": alt("a", text)}) for text in ("b", "b", "c"))
    assert one.digest == same.digest != other.digest
