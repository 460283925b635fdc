"""Parts by name: registered in process, built in, or offered by an installed package."""

from __future__ import annotations

import sys

import fake_package
import pytest

from gainroute._util.registry import Registry
from gainroute.errors import SettingError


@pytest.fixture
def shapes():
    return Registry("example.shapes", "shape", {"fraction": "fractions:Fraction"})


@pytest.fixture
def package(tmp_path, monkeypatch):
    offered = {"round": "theirs:Circle", "broken": "theirs:Missing"}
    monkeypatch.syspath_prepend(
        fake_package.install(tmp_path, "theirs", "class Circle: ...\n", {"example.shapes": offered})
    )
    yield "theirs"
    sys.modules.pop("theirs", None)


def test_a_decorator_registers_and_returns_the_object(shapes):
    @shapes.register("square")
    class Square:
        pass

    assert shapes.get("square") is Square
    assert shapes.name_of(Square) == "square"
    assert shapes.names() == ("fraction", "square")


def test_a_name_is_given_once(shapes):
    shapes.register("square", int)
    with pytest.raises(SettingError, match="shape 'square' is already registered"):
        shapes.register("square", float)
    with pytest.raises(SettingError, match="shape 'fraction' is already registered"):
        shapes.register("fraction", float)


def test_a_definition_that_is_run_again_replaces_itself(shapes):
    def define():
        @shapes.register("square")
        class Square:
            pass

        return Square

    define()
    again = define()
    assert shapes.get("square") is again


def test_a_builtin_is_imported_when_it_is_asked_for(shapes):
    from fractions import Fraction

    assert shapes.get("fraction") is Fraction
    assert shapes.name_of(Fraction) == "fraction"


def test_an_installed_package_offers_its_parts(shapes, package):
    assert shapes.names() == ("fraction", "broken", "round")
    circle = shapes.get("round")
    assert circle.__module__ == package
    assert shapes.name_of(circle) == "round"
    assert shapes.package_of("round") == package
    assert shapes.package_of("fraction") is None


def test_asking_for_a_name_imports_no_other_package(shapes, package):
    shapes.get("fraction")
    assert package not in sys.modules


def test_an_unknown_name_lists_the_known_ones_and_the_remedy(shapes, package):
    with pytest.raises(
        SettingError, match=r"shape is 'cube'; allowed are 'fraction', 'broken', 'round': install the pack"
    ):
        shapes.get("cube")
    with pytest.raises(SettingError, match="pip install cubes"):
        shapes.get("cube", remedy="pip install cubes")


def test_an_offer_that_cannot_be_loaded_names_its_package(shapes, package):
    with pytest.raises(SettingError, match=r"'broken' is offered by theirs as theirs:Missing, which cannot be loaded"):
        shapes.get("broken")


def test_an_object_that_nobody_offers_has_no_name(shapes, package):
    assert shapes.name_of(int) is None
