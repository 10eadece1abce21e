"""What each model of a live API lets its caller fix: a small table, read before anything is sent.

Promises that no optional parameter goes to a model that is not known to take it. A model that the table does not know
is sent nothing optional, and its identity says so. The table holds what providers state or their servers answered when
it was written. It does not say that a model which takes a temperature or a seed is deterministic: none promises that.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Literal

Provider = Literal["anthropic", "openai"]
PROVIDERS: tuple[Provider, ...] = ("anthropic", "openai")
Taken = Literal["taken", "refused", "absent", "unknown"]
"""Of a request parameter. absent: the protocol has none. Only what is taken is ever sent."""
TEMPERATURE = 0
SEED = 0
DATE = r"(-latest|-\d{8}|-\d{4}-\d{2}-\d{2})?"


@dataclass(frozen=True, slots=True)
class Pins:
    """What can be fixed. fingerprint: whether an answer may name the back end that gave it."""

    temperature: Taken
    seed: Taken
    fingerprint: Literal["may be returned", "absent", "unknown"]
    logprobs: Taken = "unknown"

    @property
    def is_known(self) -> bool:
        return self.temperature != "unknown"

    def described(self) -> dict[str, str]:
        """What is sent and what is not, in words, for identities and reports."""
        sent = {"temperature": str(TEMPERATURE), "seed": str(SEED), "logprobs": "asked for"}
        words = {"refused": "not sent: this model refuses it", "absent": "not sent: the protocol has none"}
        unknown = {"unknown": "not sent: unknown whether this model takes it"}
        stated = {name: {**words, **unknown, "taken": f"sent: {value}"} for name, value in sent.items()}
        values = asdict(self)
        return {
            "model": "known: what it takes is sent" if self.is_known else "unknown: nothing optional is sent",
            **{name: stated[name][values[name]] for name in sent},
            "fingerprint": self.fingerprint,
        }


MESSAGES_TAKING = Pins("taken", "absent", "absent", "absent")
MESSAGES_REFUSING = Pins("refused", "absent", "absent", "absent")
MESSAGES_UNKNOWN = Pins("unknown", "absent", "absent", "absent")
CHAT_TAKING = Pins("taken", "taken", "may be returned", "taken")
CHAT_REFUSING = Pins("refused", "unknown", "may be returned", "unknown")
CHAT_UNKNOWN = Pins("unknown", "unknown", "unknown", "unknown")

TABLE: dict[Provider, tuple[tuple[str, Pins], ...]] = {
    "anthropic": (
        (r"claude-(haiku|sonnet|opus)-4-5|claude-(sonnet|opus)-4-6", MESSAGES_TAKING),
        (r"claude-opus-4-[78]|claude-(opus|sonnet)-5(-5)?|claude-fable-5(-\d)?", MESSAGES_REFUSING),
    ),
    "openai": (
        (r"gpt-4o(-mini)?|gpt-4\.1(-mini|-nano)?|gpt-4-turbo", CHAT_TAKING),
        (r"o1|o3(-mini)?|o4-mini|gpt-5(-mini|-nano)?|gpt-5\.4(-mini|-nano)?", CHAT_REFUSING),
    ),
}
UNKNOWN: dict[Provider, Pins] = {"anthropic": MESSAGES_UNKNOWN, "openai": CHAT_UNKNOWN}


def find_pins(provider: Provider, model: str) -> Pins:
    """What that model lets its caller fix; a dated name is its family's."""
    for families, pins in TABLE[provider]:
        if re.fullmatch(f"({families}){DATE}", model):
            return pins
    return UNKNOWN[provider]


def is_same_model(asked: str, answered: str) -> bool:
    """Whether an answer comes from the model that was asked for: itself, or the dated model that its name means."""
    family = asked.removesuffix("-latest")
    return answered == asked or re.fullmatch(re.escape(family) + DATE, answered) is not None
