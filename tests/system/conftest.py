"""What the tests with other programs share."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give every call of a schema an id of its own, which pytest 9.2 leaves out: pytest-xdist runs one test per id."""
    if not item.nodeid.endswith(item.name):
        item._id = item.parent.id.child(item.name)
