"""A look into a compiled engine, which only the library can take, and only on the GPU it is for."""

import os
from pathlib import Path

from spec_trt.builder.tensorrt.library_log import library_log
from spec_trt.errors import BackendError
from spec_trt.plugins.tree_attention.plugin import tree_attention_plugin
from spec_trt.tensorrt import TENSORRT_TITLES, import_tensorrt

__all__ = ["inspect_engine"]


def inspect_engine(path: Path, backend: str) -> str:
    """What the library's inspector says of an engine: its layers, in JSON.

    Args:
        path: The engine file.
        backend: `trt` or `trt-rtx`.

    Raises:
        BackendError: The library is missing, or can't load the engine.
    """
    library = import_tensorrt(backend)
    from polygraphy.backend.trt import engine_from_path
    from polygraphy.exception import PolygraphyException

    with (
        tree_attention_plugin(library) as refusals,
        refusals.receiving(),
        library_log(Path(os.devnull)) as log,
    ):
        try:
            engine = engine_from_path(str(path))
        except PolygraphyException as error:
            raise BackendError(
                f"{TENSORRT_TITLES[backend]} can't load {path} here, it takes a GPU that it was built for: {log.reason}"
            ) from error
        inspector = engine.create_engine_inspector()
        return str(inspector.get_engine_information(library.LayerInformationFormat.JSON))
