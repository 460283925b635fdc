from pathlib import Path

import pytest

from gainroute.errors import SettingError
from gainroute.experiments.config import config_names, load_config, parse_config

SMALL = """
name = "small"
[data]
source = "digits"
[local]
epochs = 1
[vfl]
epochs = 1
[masked]
epochs = 1
"""


@pytest.mark.parametrize("name", config_names())
def test_every_config_that_comes_with_the_package_is_read(name: str) -> None:
    config = load_config(name)
    assert config.name == name
    assert config.noise.sigma == 0.25
    assert config.defer.alphas == (0.5, 1.0, 2.0, 3.0)


def test_the_regimes_are_the_papers() -> None:
    regimes = {name: load_config(name).noise.classes for name in ("digits", "modelnet40", "cifar10", "cifar100")}
    assert regimes == {"digits": (0, 5), "modelnet40": (0, 10, 20), "cifar10": (0, 5), "cifar100": (0, 20)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + "momentum = 0.9", "unknown key 'momentum'; the keys here are epochs, batch, rate"),
        (SMALL.replace("[masked]", "[mask]"), "unknown key 'mask'; the keys here are name"),
        (SMALL.replace('source = "digits"', ""), "key 'source' is missing"),
        (SMALL.replace("[local]\nepochs = 1", '[local]\nepochs = "many"'), "epochs is 'many'; .* type int"),
        (SMALL.replace("[local]\nepochs = 1", "[local]\nepochs = true"), "epochs is True"),
        (SMALL.replace("[local]\nepochs = 1", "[local]\nepochs = 0"), "at least 1 epoch"),
        (SMALL.replace("[local]\n", "[local]\nwidths = 8\n"), "widths is 8; it has to be a list"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_config_that_cannot_be_used_names_the_key(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse_config(text)


def test_a_config_is_found_by_path_and_a_missing_one_lists_the_names(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SMALL)
    assert load_config(tmp_path / "mine.toml").name == "small"
    with pytest.raises(SettingError, match="neither a file nor one of adult"):
        load_config("cifar11")
