"""The kernels that TensorRT for RTX compiled at run time, kept on disk from one process to the next."""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spec_trt.runtime.trt_log import one_line

__all__ = ["MAX_CACHE_BYTES", "SECONDS_UNSAVED", "KernelCache", "kernel_cache"]

MAX_CACHE_BYTES = 1 << 30
"""Bytes of all engines' kernels together; the files that were used least recently make room."""

SECONDS_UNSAVED = 10.0
"""How long what was compiled is in memory alone: long enough for the sizes of a generation to come together, and what
a process loses at the most that is killed."""

_LOGGER = logging.getLogger(__name__)
_HEADER = b"spec-trt kernels 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_SUFFIX = ".kernels"
_STALE_SECONDS = 3600.0


class KernelCache:
    """One engine's compiled kernels in one file; nothing that is wrong with it keeps the engine from running.

    Args:
        path: The file, in a directory of such files; made when there is something to keep.
        max_bytes: Of all files in the directory.
        clock: Gives seconds.
    """

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_CACHE_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path, self._max_bytes, self._clock = path, max_bytes, clock
        self._kept = hashlib.sha256(b"").digest()
        self._save_at: float | None = None

    def load(self, compiled: Any) -> None:  # noqa: ANN401 - an `IRuntimeCache` of the library, which has no types
        """Give the library what an earlier process kept; what is damaged, or was compiled elsewhere, is ignored."""
        try:
            content = self.path.read_bytes()
            os.utime(self.path)  # used now
            kernels = _opened(content)
            accepted = kernels is not None and compiled.deserialize(kernels)
        except FileNotFoundError:
            return
        except Exception as error:  # the library's own are of any type
            self._warn("can't be read", one_line(error))
            return
        if accepted:
            self._kept = hashlib.sha256(content).digest()
        else:
            self._warn("are ignored", "they are damaged, or of another GPU, driver or library")

    def expect_more(self) -> None:
        """Take note that the library is about to compile something."""
        if self._save_at is None:
            self._save_at = self._clock() + SECONDS_UNSAVED

    def save_if_due(self, compiled: Any) -> None:  # noqa: ANN401 - as above
        """Keep what was compiled some time ago; see `save`."""
        if self._save_at is not None and self._clock() >= self._save_at:
            self.save(compiled)

    def save(self, compiled: Any, _owners: object = None) -> None:  # noqa: ANN401 - as above
        """Keep what the library has compiled, if that is not what the file holds.

        Args:
            compiled: The library's cache.
            _owners: What must outlive it.
        """
        self._save_at = None
        try:
            kernels = bytes(memoryview(compiled.serialize()))
            content = _HEADER + hashlib.sha256(kernels).digest() + kernels
            digest = hashlib.sha256(content).digest()
            if digest != self._kept and len(content) <= self._max_bytes:
                self._write(content)
                self._kept = digest
        except Exception as error:  # as above
            self._warn("can't be kept", one_line(error))

    def _write(self, content: bytes) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, staging = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            Path(staging).replace(self.path)
        finally:
            Path(staging).unlink(missing_ok=True)
        self._make_room()

    def _make_room(self) -> None:
        """Remove what killed processes left half written, and the files used least recently until few enough remain."""
        for entry in self.path.parent.glob(f".*{_SUFFIX}.*"):
            if time.time() - entry.stat().st_mtime > _STALE_SECONDS:
                entry.unlink(missing_ok=True)
        found = [(entry.stat(), entry) for entry in self.path.parent.glob(f"*{_SUFFIX}")]
        room = self._max_bytes
        for stat, entry in sorted(found, key=lambda item: item[0].st_mtime_ns, reverse=True):
            room -= stat.st_size
            if room < 0:
                entry.unlink(missing_ok=True)

    def _warn(self, what: str, reason: str) -> None:
        _LOGGER.warning("the compiled kernels in %s %s (%s): they are compiled anew", self.path, what, reason)


def kernel_cache(engine_sha256: str, *, gpu: str, library_version: str) -> KernelCache | None:
    """Where one engine's kernels are kept for this user: below `$XDG_CACHE_HOME`, or `~/.cache`.

    Args:
        engine_sha256: Of the engine file.
        gpu: What the kernels are compiled for.
        library_version: Of TensorRT for RTX.

    Returns:
        None where the user has no directory for such things.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = given if given.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    key = hashlib.sha256("\n".join((engine_sha256, gpu, library_version)).encode()).hexdigest()
    return KernelCache(base / "spec-trt" / f"{key}{_SUFFIX}")


def _opened(content: bytes) -> bytes | None:
    """A file's kernels; None where it is not as it was written."""
    start = len(_HEADER) + _DIGEST_BYTES
    digest, kernels = content[len(_HEADER) : start], content[start:]
    whole = content.startswith(_HEADER) and hashlib.sha256(kernels).digest() == digest
    return kernels if whole else None
