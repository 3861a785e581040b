"""The exceptions that spec-trt raises on purpose.

    SpecTrtError
    ├── ConfigError      an option's value, or a combination of them, makes no sense
    ├── ModelError       the model can't be loaded, or its architecture isn't supported
    ├── ExportError      the graph could not be made, or does not match PyTorch
    ├── BuildError       an engine could not be made from a bundle
    ├── ManifestError    a bundle or engine directory is missing, damaged or does not match
    ├── BackendError     a back end is not installed, or refused to load or run a graph
    ├── PromptError      a prompt is empty, or does not fit the model's context
    ├── BusyError        a request came while the queue was full
    ├── ClosedError      a request came to, or was cut short by, an engine that was closed
    └── DataError        a prompts file can't be read

Every message says what was expected, what was found, and what to do.
"""

__all__ = [
    "BackendError",
    "BuildError",
    "BusyError",
    "ClosedError",
    "ConfigError",
    "DataError",
    "ExportError",
    "ManifestError",
    "ModelError",
    "PromptError",
    "SpecTrtError",
]


class SpecTrtError(Exception):
    """Base of all errors that the command line turns into one line and exit code 1."""


class ConfigError(SpecTrtError):
    """An option's value, or a combination of options, makes no sense."""


class ModelError(SpecTrtError):
    """The model can't be loaded, or its architecture isn't supported."""


class ExportError(SpecTrtError):
    """A graph could not be made, or does not match PyTorch."""


class BuildError(SpecTrtError):
    """An engine could not be made from a bundle."""


class ManifestError(SpecTrtError):
    """A bundle or engine directory is missing, damaged, or does not match."""


class BackendError(SpecTrtError):
    """A back end is not installed, or refused to load or run a graph."""


class PromptError(SpecTrtError):
    """A prompt is empty, or does not fit the model's context."""


class BusyError(SpecTrtError):
    """A request came while the queue was full."""


class ClosedError(SpecTrtError):
    """A request came to an engine that was closed, or was cut short by its closing."""


class DataError(SpecTrtError):
    """A prompts file can't be read."""
