"""JSON of another shape than its reader knows: what a strategy of Hypothesis makes of a sample, a place at a time."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def mutated(sample: Any) -> st.SearchStrategy[Any]:
    """Return a strategy that draws `sample` with one of its values replaced or removed or with a value added, or something else in its
    place.
    """

    @st.composite
    def draw(drawn: st.DrawFn) -> Any:
        """Draw a copy of the sample with one value replaced, removed or added, or a value unrelated to it."""
        found = copy.deepcopy(sample)
        path = drawn(st.sampled_from([(), *places(found)]))
        if not path:
            return drawn(ANYTHING)
        *way, last = path
        holder = found
        for step in way:
            holder = holder[step]
        match drawn(st.sampled_from(["replace", "replace", "remove", "add"])):
            case "replace":
                holder[last] = drawn(ANYTHING)
            case "remove":
                del holder[last]
            case "add" if isinstance(holder, dict):
                holder[drawn(st.text(max_size=5))] = drawn(ANYTHING)
            case "add":
                holder.insert(last, drawn(ANYTHING))
        return found

    return draw()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path (keys and indices) to each value inside `value`, at any depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in inner:
        yield (*path, step)
        yield from places(each, (*path, step))
