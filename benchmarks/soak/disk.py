"""Disks that can be filled under a running coordinator: one of its own, or a limit on the files that it writes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["UNSHARE", "Disk", "FileLimit", "SmallDisk", "disk_for", "mountable", "own_mounts"]

MOST_BYTES = 4 << 30  # of memory, and only as much as is written
UNSHARE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
PRIVATE = "GAINROUTE_SOAK_MOUNTS"  # tells the process that it has a mount namespace of its own


class Disk(Protocol):
    """A disk that holds `folder` alone."""

    title: str

    def fill(self, pid: int) -> None:
        """Leave no room for the process `pid`."""

    def make_room(self, pid: int) -> None:
        """Leave room again."""

    def close(self) -> None:
        """Keep the files, without the disk."""


class FileLimit:
    """No file of the process may be written any more (EFBIG): works for every user, everywhere."""

    title = "a limit on its files, since mounting is not allowed here"

    def fill(self, pid: int) -> None:
        """Set the limit."""
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))

    def make_room(self, pid: int) -> None:
        """Remove it."""
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    def close(self) -> None:
        """Nothing to do."""


class SmallDisk:
    """A tmpfs that is shrunk to what it holds (ENOSPC). The process needs a mount namespace of its own."""

    title = "a disk of its own (tmpfs)"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        _run("mount", "-t", "tmpfs", "-o", f"size={MOST_BYTES},mode=700", "tmpfs", str(folder))

    def fill(self, pid: int) -> None:  # noqa: ARG002 (whoever writes)
        """Shrink it. A journal that is used again has room for a while."""
        for _ in range(10):  # what is written between the two calls does not fit any more
            found = os.statvfs(self._folder)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            try:
                _run("mount", "-o", f"remount,size={used}", str(self._folder))
            except OSError:
                continue
            return
        raise OSError(f"{self._folder} cannot be made smaller")

    def make_room(self, pid: int) -> None:  # noqa: ARG002
        """Let it grow again."""
        _run("mount", "-o", f"remount,size={MOST_BYTES}", str(self._folder))

    def close(self) -> None:
        """Copy the files to where the disk was."""
        kept = self._folder.with_name(f"{self._folder.name}-kept")
        shutil.copytree(self._folder, kept)
        _run("umount", str(self._folder))
        self._folder.rmdir()
        kept.rename(self._folder)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


def mountable() -> bool:
    """Whether this user may mount a disk that nobody else sees."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    trial = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0  # noqa: S603 (our own)


def own_mounts(command: Sequence[str]) -> list[str] | None:
    """Return the command that runs `command` with mounts of its own; None if it has them, or may not have them."""
    if PRIVATE in os.environ or not mountable():
        return None
    return [*UNSHARE, "env", f"{PRIVATE}=1", *command]


def disk_for(folder: Path) -> Disk:
    """Return a disk for `folder`, which is empty: a real one if this process has mounts of its own."""
    return SmallDisk(folder) if PRIVATE in os.environ else FileLimit()
