"""Short runs of a model that measure its activations."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir

from spec_trt.builder.calibration_text import EXCHANGES, Exchange
from spec_trt.builder.linear import find_linears
from spec_trt.builder.onnxruntime_session import OrtGraph
from spec_trt.builder.splice import Splice
from spec_trt.errors import DataError
from spec_trt.files import sha256
from spec_trt.texts import load_texts
from spec_trt.tokenizer import Tokenizer

__all__ = ["calibration_fingerprint", "calibration_tokens", "measure_absmax"]

_LONGEST = 256
_MOST_TEXTS = 64
_RANDOM_TEXTS = 8


def calibration_fingerprint(file: Path | None) -> str:
    """Name the calibration text by its content, for the engine's manifest.

    Raises:
        DataError: The file can't be read.
    """
    if file is None:
        text = "".join(exchange.question + exchange.answer for exchange in EXCHANGES).encode()
        return f"built-in {hashlib.sha256(text).hexdigest()[:16]}"
    try:
        return f"file {sha256(file)[:16]}"
    except OSError as error:
        raise DataError(f"cannot read the calibration text {file}: {error.strerror or error}") from error


def calibration_tokens(tokenizer: Tokenizer | None, vocab: int, file: Path | None) -> list[list[int]]:
    """Turn the calibration text into token ids, at most 256 of each text.

    Args:
        tokenizer: The bundle's; without one, seeded random ids stand in for text.
        vocab: How many ids there are.
        file: The user's own text, or None for the built-in one.
    """
    if tokenizer is None:
        random = np.random.default_rng(0)
        return [random.integers(0, vocab, 64).tolist() for _ in range(_RANDOM_TEXTS)]
    if file is not None:
        texts = [tokenizer.encode(text) for text in load_texts(file)[:_MOST_TEXTS]]
    else:
        texts = [_encode_exchange(tokenizer, exchange) for exchange in EXCHANGES]
    return [ids[:_LONGEST] for ids in texts if ids]


def _encode_exchange(tokenizer: Tokenizer, exchange: Exchange) -> list[int]:
    """A question and its answer, in the chat template's form where there is one."""
    if not tokenizer.has_chat_template:
        return tokenizer.encode(f"{exchange.question}\n{exchange.answer}")
    messages = [{"role": "user", "content": exchange.question}, {"role": "assistant", "content": exchange.answer}]
    return tokenizer.encode_chat(messages, add_generation_prompt=False)


def measure_absmax(model: ir.Model, texts: Iterable[Sequence[int]]) -> dict[str, np.ndarray]:
    """Run a base graph over texts and note the largest magnitude of every channel that a matmul reads.

    Args:
        model: A graph that ONNX Runtime can run; it gets more outputs, so hand over a copy.
        texts: Token ids.

    Returns:
        Per name of a matmul's input, [inputs] float32.
    """
    outputs = _add_outputs(model)
    with TemporaryDirectory(prefix="spec-trt-") as directory:
        path = Path(directory) / "calibrate.onnx"
        ir.save(model, path, external_data=f"{path.name}.data")
        graph = OrtGraph(path)
        absmax: dict[str, np.ndarray] = {}
        for ids in texts:
            for name, found in zip(outputs, graph.run_text(ids, list(outputs.values())), strict=True):
                absmax[name] = np.maximum(absmax.get(name, 0), found)
    return absmax


def _add_outputs(model: ir.Model) -> dict[str, str]:
    """Give the graph an output [inputs] per matmul's input; maps the input's name to the output's."""
    linears = {linear.input: linear for linear in find_linears(model.graph)}
    outputs = {}
    for value, linear in linears.items():
        splice = Splice(model.graph, linear.node)
        flat = splice.op("Reshape", splice.op("Abs", value), splice.integers(-1, linear.matrix().shape[0]))
        found = splice.op("ReduceMax", flat, splice.integers(0), keepdims=0)
        found.name = f"absmax.{value.name}"
        found.dtype = ir.DataType.FLOAT
        model.graph.outputs.append(found)
        outputs[str(value.name)] = found.name
    return outputs
