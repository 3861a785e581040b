"""Directories that appear whole or not at all."""

import fcntl
import glob
import hashlib
import os
import re
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from spec_trt.errors import ConfigError, SpecTrtError

__all__ = ["atomic_directory", "sha256"]

_SECONDS_TO_LOCK = 60.0  # ample: from making a directory to locking it


def sha256(path: Path) -> str:
    """Hash a file's content, as 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def atomic_directory(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty directory beside `target`, renamed onto it when the block succeeds.

    Whatever ends the block early (an error, a full disk, Ctrl-C, SIGTERM) leaves nothing behind
    and an existing `target` untouched. What SIGKILL leaves behind the next try for `target` removes.

    Args:
        target: The directory to make.
        replace: Whether an existing `target` may be replaced, if it has a manifest or is empty.

    Raises:
        ConfigError: `target` exists and may not be replaced, or its parent can't be written.
        SpecTrtError: The disk filled up, or another file operation failed.
    """
    if os.path.lexists(target):
        if not replace:
            raise ConfigError(f"{target} exists already: choose another directory, or replace it with --force")
        if not _may_be_replaced(target):
            raise ConfigError(f"{target} is no directory that spec-trt made: choose another one, it is never replaced")
    staging = target.parent / f".{target.name}.{secrets.token_hex(4)}"  # named first: no signal falls between
    with _unwind_when_killed():
        try:
            _make(staging)
            _remove_left_behind(target)
            with _locked(staging):
                yield staging
                staging.chmod(0o777 & ~_umask())
                _swap(staging, target)
        except OSError as error:
            reason = error.strerror or f"{error} (is the disk full?)"  # NumPy gives a count of bytes alone
            raise SpecTrtError(f"writing {target} failed: {reason}; nothing was kept") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _make(directory: Path) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot write to {directory.parent}: {error.strerror or error}") from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock, where its file system has locks: where one is free, its owner is gone."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_locked(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove_left_behind(target: Path) -> None:
    """Remove the directories of killed processes that were to become `target`."""
    for entry in target.parent.glob(f".{glob.escape(target.name)}.*"):
        with suppress(OSError):  # gone meanwhile, another user's, or where there are no locks
            ours = re.fullmatch(re.escape(f".{target.name}.") + "[0-9a-f]{8}", entry.name) and entry.is_dir()
            if ours and time.time() - entry.stat().st_mtime > _SECONDS_TO_LOCK and not _is_locked(entry):
                shutil.rmtree(entry, ignore_errors=True)


def _may_be_replaced(target: Path) -> bool:
    """Whether `target` is empty or one of our directories, and not where the process stands."""
    if not target.is_dir() or target.resolve() == Path.cwd():
        return False
    return (target / "manifest.json").is_file() or not any(target.iterdir())


def _swap(staging: Path, target: Path) -> None:
    """Rename `staging` onto `target`, moving an old `target` out of the way first."""
    if not target.exists():
        staging.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    try:
        target.rename(old / "replaced")
        try:
            staging.rename(target)
        except BaseException:
            (old / "replaced").rename(target)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _unwind_when_killed() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that clean-up runs."""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # its owner handles signals
        yield
        return
    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
