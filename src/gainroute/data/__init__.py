"""Data: digits (embedded), ModelNet40 views, CIFAR quadrants, anybody's own views; splits and noise. No torch."""

from gainroute.data.dataset import Augment, Dataset, Part
from gainroute.data.load import load_dataset
from gainroute.data.progress import NoProgress, Progress, RichProgress
from gainroute.data.settings import AugmentSettings, DataSettings

__all__ = [
    "Augment",
    "AugmentSettings",
    "DataSettings",
    "Dataset",
    "NoProgress",
    "Part",
    "Progress",
    "RichProgress",
    "load_dataset",
]
