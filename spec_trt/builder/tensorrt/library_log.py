"""What the libraries say during a build: all of it in a file, the error that matters at hand."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LibraryLog", "library_log"]

_LONGEST = 500


class LibraryLog(logging.Handler):
    """Writes every message to a file and keeps the errors.

    Args:
        path: The file, which is appended to.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("a", encoding="utf-8")
        self._errors: list[str] = []

    @property
    def reason(self) -> str:
        """The first error in one line: those after it follow from it."""
        return self._errors[0] if self._errors else "the library gave no reason"

    def emit(self, record: logging.LogRecord) -> None:
        """Take one message."""
        text = record.getMessage()
        self._file.write(text + "\n")
        if record.levelno == logging.ERROR:
            line = " ".join(text.removeprefix("[E]").split())
            self._errors.append(line if len(line) <= _LONGEST else line[:_LONGEST] + " ...")

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
