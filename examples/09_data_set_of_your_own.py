"""A data set of your own: two sensors on one machine, trained and reported like the benchmarks.

Registered here for this process; an installed package uses an entry point in the group "gainroute.datasets". Then
`gainroute reproduce sensors.toml` runs the config below, with `source = "sensors"`, on as many seeds as you like.
"""

import numpy as np

from gainroute.experiments.config import parse_config
from gainroute.experiments.runner import run_cell
from gainroute.training.data import Dataset, Part, datasets, stratified_split

CONFIG = """
name = "sensors"
threads = 1
[data]
source = "sensors"
[local]
epochs = 8
rate = 1e-2
[vfl]
epochs = 12
rate = 1e-2
width = 2
latent = 16
[masked]
epochs = 2
[defer]
alphas = []
"""


@datasets.register("sensors")
def load_sensors(settings, data_dir):
    """Two parties, three states of a machine: each sensor notices one of the two faults."""
    rng = np.random.default_rng(0)
    state = rng.integers(3, size=1200)
    vibration = rng.normal(size=(1200, 6)) + 1.5 * (state == 1)[:, None]
    heat = rng.normal(size=(1200, 4)) + 1.5 * (state == 2)[:, None]
    whole = Part(np.arange(1200), state, (vibration.astype(np.float32), heat.astype(np.float32)))
    train, test = stratified_split(state, 0.3, seed=0)
    return Dataset("sensors", whole.take(train), whole.take(test), ("fine", "loose", "hot"), ("vibration", "heat"))


record = run_cell(parse_config(CONFIG), seed=0)
print(f"weak route {record.test.weak_accuracy:.1%}, strong route {record.test.strong_accuracy:.1%}")
