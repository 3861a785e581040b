"""Directories that appear whole or not at all."""

import hashlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from spec_trt.errors import ConfigError, SpecTrtError

__all__ = ["atomic_directory", "sha256"]


def sha256(path: Path) -> str:
    """Hash a file's content, as 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def atomic_directory(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty directory beside `target`, renamed onto it when the block succeeds.

    Whatever ends the block early (an error, a full disk, Ctrl-C, SIGTERM) leaves nothing behind
    and an existing `target` untouched.

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
