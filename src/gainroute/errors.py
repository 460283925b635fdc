"""Everything gainroute raises or warns of.

::

    GainrouteError
    ├── InputError (also a ValueError)      what was passed cannot be used
    │   ├── ShapeError                      wrong rank, length, or number of parties or classes
    │   ├── PosteriorError                  NaN, negative, or not summing to one
    │   ├── LabelError                      a label outside the classes
    │   ├── SettingError                    a setting outside its range (budget, threshold, λ, ...)
    │   └── DataError                       a data file is missing, malformed or misaligned
    ├── TooFewSamplesError (also a ValueError)   a guarantee needs more samples than there are
    ├── NotFittedError                      a router was used before `fit`
    ├── ArtifactError                       a saved file cannot be used
    │   ├── NotAnArtifactError              not written by gainroute, or damaged
    │   ├── ArtifactVersionError            written in a format this version does not read
    │   └── SignatureError                  not signed by a trusted signer, or altered since
    ├── StorageError (also an OSError)      a file could not be written
    └── MissingExtraError (also an ImportError)  an optional dependency is not installed

    GainrouteWarning (a UserWarning)        the result is usable; something about the data is worth knowing

Every message gives the value found, what is allowed, and the remedy.
"""

__all__ = [
    "ArtifactError",
    "ArtifactVersionError",
    "DataError",
    "GainrouteError",
    "GainrouteWarning",
    "InputError",
    "LabelError",
    "MissingExtraError",
    "NotAnArtifactError",
    "NotFittedError",
    "PosteriorError",
    "SettingError",
    "ShapeError",
    "SignatureError",
    "StorageError",
    "TooFewSamplesError",
]


class GainrouteError(Exception):
    """Base of everything gainroute raises."""


class InputError(GainrouteError, ValueError):
    """What was passed cannot be used."""


class ShapeError(InputError):
    """Wrong rank, length, or number of parties or classes."""


class PosteriorError(InputError):
    """A posterior has NaN, a negative entry, or does not sum to one."""


class LabelError(InputError):
    """A label lies outside the classes."""


class SettingError(InputError):
    """A setting lies outside its range."""


class DataError(InputError):
    """A data file is missing, malformed or misaligned."""


class TooFewSamplesError(GainrouteError, ValueError):
    """A guarantee needs more samples than there are."""


class NotFittedError(GainrouteError):
    """A router was used before `fit`."""


class ArtifactError(GainrouteError):
    """A saved file cannot be used."""


class NotAnArtifactError(ArtifactError):
    """The file was not written by gainroute, or it is damaged."""


class ArtifactVersionError(ArtifactError):
    """The file is of a format that this version does not read."""


class SignatureError(ArtifactError):
    """The file or folder is not signed by a trusted signer, or was altered since."""


class StorageError(GainrouteError, OSError):
    """A file could not be written."""


class MissingExtraError(GainrouteError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs an optional dependency: pip install 'gainroute[{extra}]', or in a checkout pip install "
            f"'.[{extra}]'"
        )


class GainrouteWarning(UserWarning):
    """The result is usable; something about the data is worth knowing."""
