"""Options of the drafting methods: reading them from a mapping, and checking them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from spec_trt.errors import ConfigError

__all__ = ["check_flag", "check_integer", "check_share", "check_text", "read_options"]

Options = TypeVar("Options")


def read_options(method: str, options_class: type[Options], given: Mapping[str, Any]) -> Options:
    """An `options_class` with the values of a mapping, defaults for the rest.

    Args:
        method: The method's name, for the message.
        options_class: The dataclass of the method's options, which checks the values.
        given: Values by option name.

    Raises:
        ConfigError: An option is unknown, or has a bad value.
    """
    known = [field.name for field in fields(options_class)]  # type: ignore[arg-type]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigError(
            f"method {method} takes {'the options ' + ', '.join(known) if known else 'no options'}: "
            f"found {', '.join(map(str, unknown))}; remove or rename it"
        )
    return options_class(**given)


def check_integer(name: str, value: object, *, at_least: int) -> None:
    """Refuse a value that is not an integer in range.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"{name} must be an integer of at least {at_least}: found {value!r}; give a number in range")


def check_share(name: str, value: object) -> None:
    """Refuse a value that is not a number from 0 to 1.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ConfigError(f"{name} must be a number from 0 to 1: found {value!r}; give a number in range")


def check_flag(name: str, value: object) -> None:
    """Refuse a value that is not a truth value.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false: found {value!r}; give one of the two")


def check_text(name: str, value: object) -> None:
    """Refuse a value that is not a text.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text: found {value!r}; give it in quotes")
