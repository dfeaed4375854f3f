"""Whatever a configuration says, it is either right or refused with places; never a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.schema import Plain, node_of
from headrace.config.text import SourceLocation
from headrace.engine.config_keys import FILTERS, SOURCES, TARGETS, TRANSFORMS
from headrace.engine.from_config import configured
from headrace.errors import InvalidConfiguration
from tests.support.tiers import examples

PLACE = SourceLocation("headrace.conf", 7, 3)

TYPES = [type for each in (SOURCES, TARGETS, FILTERS, TRANSFORMS) for type in each.types()]
WORDS = sorted(
    {
        *(
            "type",
            "source",
            "tables",
            "target",
            "filters",
            "transforms",
            "error_handling",
            "record",
        ),
        *("mode", "dead_letter", "shop", "orders", "publication", "x y", "", "a.b"),
        *(
            key.name
            for each in (SOURCES, TARGETS)
            for p in each.built_in.values()
            for key in p.keys
        ),
    }
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(TYPES),
    st.text(max_size=9),
)
trees: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda below: st.one_of(
        st.lists(below, max_size=3), st.dictionaries(st.sampled_from(WORDS), below, max_size=5)
    ),
    max_leaves=12,
)
parts = st.dictionaries(st.sampled_from(WORDS), trees, max_size=5)
typed = st.builds(lambda part, type: {**part, "type": type}, parts, st.sampled_from(TYPES))
pipelines = st.builds(
    lambda part, target, filters: {
        **part,
        "source": "shop",
        "target": target,
        "filters": filters,
    },
    parts,
    typed,
    st.lists(typed, max_size=2),
)


def wholes() -> st.SearchStrategy[Plain]:
    right: Plain = {"type": "sqlite", "path": "a.db"}
    made: st.SearchStrategy[Plain] = st.fixed_dictionaries(
        {},
        optional={
            "data": scalars,
            "sources": st.fixed_dictionaries({}, optional={"shop": st.just(right), "b": typed}),
            "pipelines": st.dictionaries(st.sampled_from(WORDS), pipelines, max_size=2),
            "spark": trees,
            "secrets": trees,
            "strange": trees,
        },
    )
    return st.one_of(made, trees)


@given(wholes())
@examples(300)
@pytest.mark.slow
def test_it_is_right_or_refused_with_places(plain: Plain) -> None:
    try:
        found = configured(node_of(plain, PLACE))
    except InvalidConfiguration as error:
        assert error.errors
        for each in error.errors:
            assert each.message.startswith("headrace.conf:7:3: ")
            assert each.remedy
    else:
        json.dumps(found.masked())
        assert all(each.name for each in found.settings())
