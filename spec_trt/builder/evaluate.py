"""How much an engine's numbers differ from its bundle's, on real text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spec_trt import names
from spec_trt.builder.onnxruntime_session import OrtGraph
from spec_trt.errors import DataError
from spec_trt.texts import load_texts
from spec_trt.tokenizer import Tokenizer

__all__ = ["Evaluation", "evaluate", "evaluation_tokens"]

_TEXTS = 40
_SHORTEST = 64
_LONGEST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An engine beside its bundle.

    Attributes:
        texts: How many texts were read.
        tokens: How many tokens they have in all.
        bundle_perplexity: exp of the mean negative log-likelihood of every token but the first.
        engine_perplexity: The same of the engine.
        argmax_agreement: The share of positions at which both choose the same next token.
        divergence: Mean Kullback-Leibler divergence of the engine from the bundle, in nats per position.
    """

    texts: int
    tokens: int
    bundle_perplexity: float
    engine_perplexity: float
    argmax_agreement: float
    divergence: float

    @property
    def ratio(self) -> float:
        """The engine's perplexity over the bundle's."""
        return self.engine_perplexity / self.bundle_perplexity


def evaluation_tokens(tokenizer: Tokenizer | None, file: Path) -> list[list[int]]:
    """Tokenize 40 texts of at least 64 tokens, spread evenly over the file, each cut at 512.

    Raises:
        DataError: There is no tokenizer, the file can't be read, or no text is long enough.
    """
    if tokenizer is None:
        raise DataError("--eval needs a tokenizer, and the bundle holds none: export it from a model that has one")
    texts = (tokenizer.encode(text) for text in load_texts(file))
    found = [ids[:_LONGEST] for ids in texts if len(ids) >= _SHORTEST]
    if not found:
        raise DataError(f"{file} has no text of at least {_SHORTEST} tokens: too short to measure a perplexity on")
    count = min(_TEXTS, len(found))
    return [found[index * len(found) // count] for index in range(count)]


def evaluate(bundle_graph: Path, engine_graph: Path, texts: Iterable[Sequence[int]]) -> Evaluation:
    """Run both base graphs over texts, each in one causal pass, and compare."""
    bundle, engine = OrtGraph(bundle_graph), OrtGraph(engine_graph)
    rows = np.array([_compare(bundle, engine, ids) for ids in texts])
    tokens, bundle_loss, engine_loss, agreeing, divergence = rows.sum(axis=0)
    predicted = tokens - len(rows)
    return Evaluation(
        texts=len(rows),
        tokens=int(tokens),
        bundle_perplexity=float(np.exp(bundle_loss / predicted)),
        engine_perplexity=float(np.exp(engine_loss / predicted)),
        argmax_agreement=float(agreeing / tokens),
        divergence=float(divergence / tokens),
    )


def _compare(bundle: OrtGraph, engine: OrtGraph, ids: Sequence[int]) -> tuple[float, ...]:
    """Tokens, both summed losses, positions that agree, and the summed divergence of one text."""
    (reference,), (logits,) = (graph.run_text(ids, [names.LOGITS]) for graph in (bundle, engine))
    expected, found = _log_softmax(reference[0]), _log_softmax(logits[0])
    targets = np.arange(len(ids) - 1), np.asarray(ids[1:])
    agreeing = (expected.argmax(axis=-1) == found.argmax(axis=-1)).sum()
    divergence = (np.exp(expected) * (expected - found)).sum()
    return len(ids), -expected[targets].sum(), -found[targets].sum(), agreeing, divergence


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """[nodes, vocab] -> the same, float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
