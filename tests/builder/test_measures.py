"""Evaluation and calibration on a tiny model."""

import numpy as np
import onnx_ir as ir
import pytest

from spec_trt.builder.build import build_engine
from spec_trt.builder.calibration import calibration_tokens, measure_absmax
from spec_trt.builder.calibration_text import EXCHANGES
from spec_trt.builder.config import BuildConfig
from spec_trt.builder.evaluate import evaluate, evaluation_tokens
from spec_trt.builder.linear import find_linears
from spec_trt.builder.pipeline import lower
from spec_trt.errors import DataError
from spec_trt.texts import load_texts
from spec_trt.tokenizer import load_tokenizer


@pytest.fixture
def texts_file(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(f'{{"prompt": "{"ab cd " * 20}"}}\n{{"turns": ["short"]}}\n{{"text": "{"0123 " * 200}"}}\n')
    return path


def test_texts_are_read_in_every_form(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(
        '{"text": "a"}\n\n{"prompt": "b"}\n{"turns": ["c", "x"]}\n'
        '{"messages": [{"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]}\n'
        '{"prompt": "f", "response": "g"}\n'
    )
    assert load_texts(path) == ["a", "b", "c", "d\n\ne", "f\n\ng"]
    path.write_text("one\nparagraph\n\n\nanother\n")
    assert load_texts(path) == ["one\nparagraph", "another"]


@pytest.mark.parametrize("content", ["", "\n\n", '{"text": 3}\n', '{"text": "a"}\n{oops\n', '{"other": "a"}\n'])
def test_files_without_text_are_refused(tmp_path, content):
    path = tmp_path / "texts.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match="expected"):
        load_texts(path)
    with pytest.raises(DataError, match="cannot read"):
        load_texts(tmp_path / "absent")


def test_built_in_text_is_short_and_of_many_kinds():
    assert 10 <= len(EXCHANGES) <= 32
    assert sum(len(item.question) + len(item.answer) for item in EXCHANGES) < 12_000


def test_calibration_tokens(text_bundle, tmp_path):
    tokenizer = load_tokenizer(text_bundle)
    assert tokenizer is not None
    built_in = calibration_tokens(tokenizer, 257, None)
    assert len(built_in) == len(EXCHANGES)
    assert max(map(len, built_in)) <= 256
    path = tmp_path / "own.txt"
    path.write_text("abc")
    assert calibration_tokens(tokenizer, 257, path) == [list(b"abc")]
    random = calibration_tokens(None, 257, None)
    assert random == calibration_tokens(None, 257, None)
    assert all(0 <= token < 257 for ids in random for token in ids)
    assert load_tokenizer(tmp_path) is None


def test_absmax_is_measured_per_channel_over_all_texts(text_bundle):
    model = ir.load(text_bundle / "base.onnx")
    lower(model)
    inputs = {str(linear.input.name) for linear in find_linears(model.graph)}
    first, second = (measure_absmax(model.clone(), [ids]) for ids in ([5, 6, 7], [8, 9]))
    both = measure_absmax(model.clone(), [[5, 6, 7], [8, 9]])
    assert set(both) == inputs
    for name, found in both.items():
        assert np.array_equal(found, np.maximum(first[name], second[name]))


def test_evaluation_of_the_bundle_itself_and_of_int8(text_bundle, texts_file, tmp_path):
    texts = evaluation_tokens(load_tokenizer(text_bundle), texts_file)
    assert [len(ids) for ids in texts] == [120, 512]
    graph = text_bundle / "base.onnx"
    texts = [ids[:100] for ids in texts]
    same = evaluate(graph, graph, texts)
    assert (same.texts, same.tokens, same.argmax_agreement) == (2, 200, 1.0)
    assert same.divergence == pytest.approx(0, abs=1e-9)
    assert same.bundle_perplexity == same.engine_perplexity == pytest.approx(perplexity(graph, texts), rel=1e-4)
    build_engine(BuildConfig(bundle=text_bundle, out=tmp_path / "int8", precision="int8"))
    quantized = evaluate(graph, tmp_path / "int8" / "base.onnx", texts)
    assert quantized.argmax_agreement > 0.8
    assert 0 < quantized.divergence < 0.1
    assert quantized.ratio == pytest.approx(1, abs=0.1)


def perplexity(graph, texts):
    from spec_trt.builder.onnxruntime_session import OrtGraph

    losses = []
    for ids in texts:
        (logits,) = OrtGraph(graph).run_text(ids, ["logits"])
        chances = np.exp(logits[0].astype(np.float64))
        chances /= chances.sum(axis=1, keepdims=True)
        losses += [-np.log(chances[index, token]) for index, token in enumerate(ids[1:])]
    return np.exp(np.mean(losses))


def test_evaluation_needs_a_tokenizer_and_long_texts(text_bundle, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("short")
    with pytest.raises(DataError, match="no text of at least 64 tokens"):
        evaluation_tokens(load_tokenizer(text_bundle), path)
    with pytest.raises(DataError, match="needs a tokenizer"):
        evaluation_tokens(None, path)
