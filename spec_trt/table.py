"""Plain-text tables."""

from collections.abc import Sequence

__all__ = ["format_table"]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align rows under a header: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [_line(header, widths), "  ".join("-" * width for width in widths)]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()
