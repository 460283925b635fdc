"""The folder whose files admin calls may name."""

from __future__ import annotations

from pathlib import Path

from gainroute._util.files import open_regular
from gainroute.federation.coordinator.errors import BadRequestError
from gainroute.federation.coordinator.settings import FusionSettings, RouterSettings
from gainroute.io.run_folder import ServerFolder

__all__ = ["ArtifactFolder"]


class ArtifactFolder:
    """Regular files of bounded size inside one folder; symbolic links may not lead out of it.

    A token must not suffice to read other files, or to block the coordinator with a pipe, a device or a file without
    end. Who can write to the folder is trusted.
    """

    def __init__(self, settings: RouterSettings) -> None:
        self._root = settings.artifact.parent if settings.folder is None else settings.folder
        self._max_bytes = settings.max_file_bytes

    def file(self, name: str) -> Path:
        """The path of a file, for reading."""
        path = self._inside(name)
        try:
            open_regular(path, self._max_bytes).close()
        except OSError as error:
            raise BadRequestError(f"{name[:200]!r} cannot be read: {error.strerror or error}") from None
        return path

    def fusion(self, given: dict[str, str]) -> FusionSettings:
        """Settings of a fusion: ``{"run": "<server folder>"}`` or ``{"strong": "<file>"}``."""
        ((kind, name),) = given.items()
        if kind == "strong":
            return FusionSettings(strong=self.file(name))
        server = ServerFolder(self._inside(name))
        for file in (server.head, server.masked_head):
            if file.exists():
                self.file(str(file))
        return FusionSettings(run=server.path)

    def _inside(self, name: str) -> Path:
        root = self._root.resolve()
        try:
            path = (root / name).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a name too long, a loop of links
            raise BadRequestError(f"{name[:200]!r} is not the name of a file ({error})") from None
        if not path.is_relative_to(root):
            raise BadRequestError(
                f"{name[:200]!r} is outside {root}; copy it there, or name a folder that contains both by router.folder"
            )
        return path
