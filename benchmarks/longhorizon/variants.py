"""Variants of a case: other events or another order, the same truth.

oracle: only the events that carry true values, without links to the others. full: as written. reordered: the same
events in another order of arrival; an event still comes after every event that it links to, so that links keep their
meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.longhorizon.case import Case, Variant, WrongValue
from benchmarks.longhorizon.draw import Draw
from projection.events import Event, numbered


def arrange(full: Case, variant: Variant, draw: Draw) -> Case:
    """The variant of a full case."""
    events = [logged.event for logged in full.events]
    if variant == "oracle":
        carriers = {field.event_id for field in full.truth.fields}
        events = [_without_dangling_links(event, carriers) for event in events if event.event_id in carriers]
    elif variant == "reordered":
        events = _reorder(events, draw)
    return _placed(full, events, variant)


def _placed(full: Case, events: Sequence[Event], variant: Variant) -> Case:
    """The case with these events, and its truth with their positions."""
    logged = numbered(events)
    place = {event.event.event_id: event.position for event in logged}

    def placed(values: Sequence[WrongValue]) -> tuple[WrongValue, ...]:
        kept = (replace(value, position=place[value.event_id]) for value in values if value.event_id in place)
        return tuple(sorted(kept, key=lambda value: value.position))

    truth = replace(
        full.truth,
        variant=variant,
        fields=tuple(replace(field, position=place[field.event_id]) for field in full.truth.fields),
        superseded=placed(full.truth.superseded),
        distractors=placed(full.truth.distractors),
    )
    return replace(full, events=logged, truth=truth)


def _without_dangling_links(event: Event, kept: set[str]) -> Event:
    return replace(event, links=tuple(link for link in event.links if link.event_id in kept))


def _reorder(events: Sequence[Event], draw: Draw) -> list[Event]:
    """A random order in which every event follows the events that it links to."""
    waiting = draw.shuffled(list(events))
    order: list[Event] = []
    arrived: set[str] = set()
    while waiting:
        ready = next(event for event in waiting if all(link.event_id in arrived for link in event.links))
        waiting.remove(ready)
        order.append(ready)
        arrived.add(ready.event_id)
    return order
