"""What the libraries say during a build: all of it in a file, the error that matters at hand."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LibraryLog", "last_words", "library_log"]

_LONGEST = 500
_NO_REASON = "the library gave no reason"


class LibraryLog(logging.Handler):
    """Writes every message to a file and keeps the errors.

    Args:
        path: The file, which is appended to.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._reason, self._cause, self._warned = "", "", ""

    @property
    def reason(self) -> str:
        """The first error in one line: errors after it follow from it."""
        return self._reason or _NO_REASON

    @property
    def reason_and_cause(self) -> str:
        """The same, with the warning right before it: a compiler's error is that nothing was left to try."""
        return f"{self.reason} (warned before: {self._cause})" if self._cause else self.reason

    def emit(self, record: logging.LogRecord) -> None:
        """Take one message."""
        text = record.getMessage()
        self._file.write(text + "\n")
        if record.levelno == logging.ERROR and not self._reason:
            self._reason, self._cause = _one_line(text), self._warned
        self._warned = _one_line(text) if record.levelno == logging.WARNING else ""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


@contextmanager
def library_log(path: Path) -> Iterator[LibraryLog]:
    """Take what Polygraphy, and through it the library, has to say.

    Args:
        path: The file, which is appended to.
    """
    from polygraphy.logger import G_LOGGER

    log, logger = LibraryLog(path), logging.getLogger("Polygraphy")
    settings = (G_LOGGER.colors, G_LOGGER.use_python_logging_system, logger.level, logger.propagate)
    logger.addHandler(log)
    logger.setLevel(1)
    logger.propagate = False
    G_LOGGER.colors, G_LOGGER.use_python_logging_system = False, True
    G_LOGGER.once_logged.clear()
    try:
        with G_LOGGER.verbosity(G_LOGGER.VERBOSE):
            yield log
    finally:
        G_LOGGER.colors, G_LOGGER.use_python_logging_system, level, logger.propagate = settings
        logger.setLevel(level)
        logger.removeHandler(log)
        log.close()


def last_words(path: Path) -> str:
    """The last warning or error in a log and what was printed after it: all there is where a process just ended."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    lines = [line for line in lines if line.strip()]
    said = [_one_line(line) for line in lines if line.startswith(("[W]", "[E]"))][-1:]
    printed = [line.strip() for line in lines[-1:] if not line.startswith("[")]
    return "; ".join([*said, *printed]) or _NO_REASON


def _one_line(text: str) -> str:
    line = " ".join(text[3:].split())  # without the letter of its severity
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " ..."
