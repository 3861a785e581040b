"""Directories that appear whole or not at all."""

import hashlib
import os
import shutil
import signal
import tempfile
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
        replace: Whether an existing `target` may be replaced.

    Raises:
        ConfigError: `target` exists and `replace` is false, or its parent can't be written.
        SpecTrtError: The disk filled up, or another file operation failed.
    """
    if target.exists() and not replace:
        raise ConfigError(f"{target} exists already: choose another directory, or replace it with --force")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise ConfigError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    try:
        with _terminate_as_interrupt():
            yield staging
        staging.chmod(0o777 & ~_umask())
        _swap(staging, target)
    except OSError as error:
        raise SpecTrtError(f"writing {target} failed: {error.strerror or error}; nothing was kept") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _swap(staging: Path, target: Path) -> None:
    """Rename `staging` onto `target`, moving an old `target` out of the way first."""
    if not target.exists():
        staging.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old / "replaced")
    staging.rename(target)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that clean-up runs."""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: its owner handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
