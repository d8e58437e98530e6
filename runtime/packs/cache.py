"""Where fetched packs live, and how one appears there whole or not at all.

`<cache folder>/packs/` holds one folder for each finished pack. A pack is built in a hidden sibling folder, flushed to
disk, then renamed; a finished folder never changes. The cache folder is `environment.cache_folder()`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mtrun.runtime.environment import cache_folder
from mtrun.runtime.errors import PackError

_STAGING = ".staging-"
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class PackCache:
    """The folder of finished packs. It is made on first write, never on a read."""

    root: Path

    @staticmethod
    def default() -> PackCache:
        return PackCache(cache_folder() / "packs")

    def finished(self, prefix: str) -> list[Path]:
        """Finished pack folders whose name starts with `prefix`, newest first."""
        try:
            found = [path for path in self.root.iterdir() if path.name.startswith(prefix) and path.is_dir()]
            return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PackError(f"the cache {self.root} cannot be read ({error.strerror}): set MTRUN_CACHE.") from error

    @contextlib.contextmanager
    def locked(self, name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock of one pack's fetches. `waiting` is called once if another process holds it.

        The lock ends with the process, however it ends. Leftovers of interrupted builds are removed here.
        """
        import fcntl

        with self.explained():
            self.root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.root / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            told = False
            while not _try_lock(fcntl, handle):
                if not told:
                    waiting()
                    told = True
                time.sleep(_POLL_SECONDS)
            for left in self.root.glob(f"{_STAGING}{name}-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def staging(self, name: str) -> Iterator[Path]:
        """An empty folder on the cache's file system, gone when the block ends. Hold the lock of `name`."""
        with self.explained():
            folder = Path(tempfile.mkdtemp(prefix=f"{_STAGING}{name}-", dir=self.root))
        try:
            with self.explained():
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, built: Path, name: str) -> Path:
        """Flush `built` to disk and give it its final name. If that exists already, it stays and is returned."""
        final = self.root / name
        with self.explained():
            for path in sorted(built.rglob("*")):
                _flush(path)
            _flush(built)
            if final.exists():
                return final
            os.rename(built, final)
            _flush(self.root)
        return final

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns what a disk can refuse into one PackError sentence."""
        try:
            yield
        except OSError as error:
            raise PackError(disk_sentence(error, self.root)) from error


def disk_sentence(error: OSError, root: Path) -> str:
    """Why writing below `root` failed, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk that holds {root} is full: free some space, or set MTRUN_CACHE to a folder on another disk."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"the cache {root} cannot be written ({error.strerror}): set MTRUN_CACHE to a folder of your own."
    return f"the cache {root} cannot be used ({error.strerror or error}): set MTRUN_CACHE to another folder."


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for an unchanging file; a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _try_lock(fcntl: object, handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[attr-defined]
    except BlockingIOError:
        return False
    return True


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
