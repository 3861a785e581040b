"""What the kernel can't do, said by name."""

from dataclasses import dataclass

from spec_trt.errors import BackendError
from spec_trt.plugins.tree_attention.tile_sizes import MAX_HEAD_DIM

__all__ = ["DTYPES", "Attributes", "refuse_capability", "refuse_dtype", "refuse_sizes"]

DTYPES = ("fp16", "bf16", "fp32")
"""Element types of queries, keys and values, as `spec-trt export --dtype` names them."""

_HEAD_DIM_STEP = 8  # elements per row of a load: 16 bytes in half precision
_NATIVE = "build with `--attention native`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """The op's attributes.

    Attributes:
        scale: Factor on the scores.
        softcap: Bound of the scores; 0 for none.
        sliding_window: Positions a node sees, its own included; 0 where the model has no windows.
    """

    scale: float
    softcap: float = 0.0
    sliding_window: int = 0


def refuse_sizes(*, heads: int, kv_heads: int, head_dim: int) -> None:
    """Refuse shapes that the kernel has no tile for.

    Raises:
        BackendError: Says which size, and what would do.
    """
    if not 0 < head_dim <= MAX_HEAD_DIM or head_dim % _HEAD_DIM_STEP:
        raise BackendError(
            f"the TreeAttention kernel takes a head_dim that is a multiple of {_HEAD_DIM_STEP} up to {MAX_HEAD_DIM}, "
            f"found {head_dim}: {_NATIVE}"
        )
    if kv_heads < 1 or heads % kv_heads:
        raise BackendError(
            f"the TreeAttention kernel takes query heads that are a multiple of the key heads, "
            f"found {heads} and {kv_heads}: {_NATIVE}"
        )


def refuse_dtype(dtype: str) -> None:
    """Refuse element types that the kernel does not know.

    Raises:
        BackendError: Says which type, and what to export instead.
    """
    if dtype not in DTYPES:
        raise BackendError(
            f"the TreeAttention kernel takes {', '.join(DTYPES)}, found {dtype}: export with `--dtype fp16`"
        )


def refuse_capability(*, dtype: str, capability: int) -> None:
    """Refuse a GPU that lacks what the kernel needs for a type.

    Raises:
        BackendError: Says which GPU, and what would do.
    """
    found = f"found {capability // 10}.{capability % 10}"
    if capability < 75:
        raise BackendError(f"the TreeAttention kernel needs compute capability 7.5, {found}: use a newer GPU")
    if capability < 80 and dtype == "bf16":
        raise BackendError(
            f"the TreeAttention kernel needs compute capability 8.0 for bf16, {found}: export with `--dtype fp16`"
        )
