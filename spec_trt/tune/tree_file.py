"""Files that hold a static tree, as the option `tree` of a method takes them."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spec_trt.errors import SpecTrtError

__all__ = ["tree_file", "write_tree_file"]


@contextmanager
def tree_file(tree: Sequence[Sequence[int]]) -> Iterator[str]:
    """The name of a file that holds a tree, for the time of a `with` block."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "tree.json"
        write_tree_file(file, tree)
        yield str(file)


def write_tree_file(file: Path, tree: Sequence[Sequence[int]]) -> None:
    """Write a tree as a JSON list of lists of ranks.

    Raises:
        SpecTrtError: The file can't be written.
    """
    try:
        file.write_text(json.dumps(tree) + "\n", encoding="utf-8")
    except OSError as error:
        raise SpecTrtError(f"cannot write the tree to {file}: {error.strerror or error}; give another file") from error
