import pytest

from spec_trt.errors import BackendError, ConfigError, ManifestError, PromptError
from spec_trt.manifest import describe_files, save_manifest
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.sampling import Sampling
from tests.runtime.fake_engine import EOS, fake_engine, save_byte_tokenizer
from tests.runtime.fake_session import FakeSession
from tests.runtime.fakes import FakeTarget
from tests.test_manifest import make_engine_facts, make_manifest

MODEL = FakeTarget(vocab=8, order=2, period=5)


class Script:
    """A target that recites a text after a prompt of one token."""

    vocab = 257

    def __init__(self, text):
        self.tokens = [*text.encode(), EOS]

    def next_token(self, prefix):
        position = len(prefix) - 1
        return self.tokens[position] if position < len(self.tokens) else EOS


@pytest.fixture(scope="module")
def tokenizer_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(directory)
    return directory


@pytest.mark.parametrize("method", METHODS)
def test_a_second_generation_equals_the_first(tmp_path, method):
    engine = fake_engine(tmp_path, MODEL)
    config = GenerationConfig(method=method, max_new_tokens=40)
    prompt = [1, 2, 3, 1, 2]
    first, second = engine.generate(prompt, config), engine.generate(prompt, config)
    assert first.token_ids == second.token_ids == MODEL.greedy(prompt, 40)
    assert first.stats.passes == second.stats.passes
    assert first.finish_reason == "length"


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_plain_samplings_output_again(tmp_path, method):
    engine = fake_engine(tmp_path, MODEL, logits=MODEL.logits)

    def output(method, seed):
        sampling = Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=seed)
        result = engine.generate([1, 2, 3], GenerationConfig(method=method, sampling=sampling, max_new_tokens=40))
        assert result.guarantee == "token for token"
        return result.token_ids

    assert output(method, 7) == output(method, 7) == output("autoregressive", 7) != output(method, 8)


def test_results_say_what_they_have_in_common_with_plain_decoding(tmp_path):
    engine = fake_engine(tmp_path, MODEL, logits=MODEL.logits)

    def guarantee(method, **sampling):
        config = GenerationConfig(method=method, sampling=Sampling(**sampling), max_new_tokens=5)
        return engine.generate([1, 2, 3], config).guarantee

    assert guarantee("eagle", temperature=1, draft_sampling=True) == "in law"
    assert guarantee("medusa", temperature=1, acceptance="typical") == "not lossless"
    assert guarantee("eagle", draft_sampling=True) == guarantee("medusa", acceptance="typical") == "token for token"


def test_a_method_that_does_not_go_with_the_sampling_is_refused(tmp_path):
    engine = fake_engine(tmp_path, MODEL)
    for method in METHODS:
        drawn = GenerationConfig(method=method, sampling=Sampling(draft_sampling=True))
        typical = GenerationConfig(method=method, sampling=Sampling(acceptance="typical"))
        if method != "eagle":
            with pytest.raises(ConfigError, match=rf"before anything is drawn \(eagle\): found {method}; choose"):
                engine.stream([1], drawn)
        if method != "medusa":
            with pytest.raises(ConfigError, match=rf"typical acceptance is for medusa: found {method}; choose"):
                engine.stream([1], typical)


@pytest.mark.parametrize("method", METHODS)
def test_an_abandoned_generation_leaves_no_trace(tmp_path, method):
    engine = fake_engine(tmp_path, MODEL)
    config = GenerationConfig(method=method, max_new_tokens=40)
    for _ in engine.stream([7, 7, 7], config):
        break
    assert engine.generate([1, 2, 3], config).token_ids == MODEL.greedy([1, 2, 3], 40)


@pytest.mark.parametrize("method", METHODS)
def test_a_generation_asked_for_meanwhile_leaves_the_running_one_alone(tmp_path, method):
    engine = fake_engine(tmp_path, MODEL)
    config = GenerationConfig(method=method, max_new_tokens=40)
    running = engine.stream([7, 7, 7], config)
    next(iter(running))
    engine.stream([1, 2], config)
    assert running.result().token_ids == MODEL.greedy([7, 7, 7], 40)


def test_methods_are_those_that_the_heads_allow(tmp_path):
    assert fake_engine(tmp_path, MODEL).methods == list(METHODS)
    headless = fake_engine(tmp_path, MODEL, heads=Heads())
    assert headless.methods == ["autoregressive", "ngram", "jacobi", "lookahead"]
    with pytest.raises(ConfigError, match="needs Medusa heads, the engine has none"):
        headless.stream([1], GenerationConfig(method="medusa"))


def test_a_closed_generation_has_what_there_was_until_then(tmp_path):
    engine = fake_engine(tmp_path, MODEL)
    with engine.stream([1], GenerationConfig(max_new_tokens=400)) as generation:
        next(iter(generation))
    result = generation.result()
    assert result.finish_reason == "cancelled"
    assert 0 < len(result.token_ids) < 400
    assert result.token_ids == MODEL.greedy([1], len(result.token_ids))


@pytest.mark.parametrize("method", METHODS)
def test_a_full_context_ends_with_length(tmp_path, method):
    engine = fake_engine(tmp_path, MODEL, max_positions=24)
    result = engine.generate([1, 2, 3, 4], GenerationConfig(method=method, max_new_tokens=1000))
    assert result.token_ids == MODEL.greedy([1, 2, 3, 4], 20)
    assert result.finish_reason == "length"


def test_prompts_that_make_no_sense_are_refused(tmp_path, tokenizer_directory):
    engine = fake_engine(tmp_path, MODEL, max_positions=4)
    with pytest.raises(PromptError, match="has 4 tokens, the model's context holds 4"):
        engine.stream([1, 2, 3, 4])
    with pytest.raises(PromptError, match="empty"):
        engine.generate([])
    with pytest.raises(PromptError, match="token id 8 is outside the model's vocabulary of 8"):
        engine.generate([8])
    with pytest.raises(ManifestError, match="no tokenizer"):
        engine.generate("text")
    with pytest.raises(PromptError, match="empty"):
        fake_engine(tokenizer_directory, MODEL).generate("")


def test_unknown_methods_and_options_are_refused_before_anything_runs(tmp_path):
    engine = fake_engine(tmp_path, MODEL)
    with pytest.raises(ConfigError, match="autoregressive, ngram"):
        engine.stream([1], GenerationConfig(method="warp"))
    with pytest.raises(ConfigError, match="num_draft_tokens"):
        engine.stream([1], GenerationConfig(method="ngram", options={"speed": 9}))
    with pytest.raises(ConfigError, match="at least 1"):
        GenerationConfig(max_new_tokens=0)


@pytest.mark.parametrize("method", METHODS)
def test_text_streams_in_whole_characters_and_ends_before_eos(tokenizer_directory, method):
    text = "déjà vu, déjà vu, déjà vu: 日本 日本 日本 🎉"
    engine = fake_engine(tokenizer_directory, Script(text), eos_ids=[EOS])
    generation = engine.stream([65], GenerationConfig(method=method, max_new_tokens=200))
    pieces = [emission.text for emission in generation]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    result = generation.result()
    assert (result.text, result.token_ids, result.finish_reason) == (text, list(text.encode()), "eos")


@pytest.mark.parametrize("method", METHODS)
def test_stop_strings_cut_text_tokens_and_stream_alike(tokenizer_directory, method):
    engine = fake_engine(tokenizer_directory, Script("one two one two END of it"), eos_ids=[EOS])
    generation = engine.stream([65], GenerationConfig(method=method, max_new_tokens=200, stop=["END", "zzz"]))
    assert "".join(emission.text for emission in generation) == "one two one two "
    result = generation.result()
    assert result.text == "one two one two "
    assert result.token_ids == list(b"one two one two ")
    assert result.finish_reason == "stop"


def test_ignore_eos_goes_on(tokenizer_directory):
    engine = fake_engine(tokenizer_directory, Script("ab"), eos_ids=[EOS])
    result = engine.generate([65], GenerationConfig(max_new_tokens=5, ignore_eos=True))
    assert result.token_ids == [97, 98, EOS, EOS, EOS]


def test_encode_wraps_a_prompt_in_the_chat_template(tokenizer_directory, tmp_path):
    engine = fake_engine(tokenizer_directory, Script("x"))
    assert engine.encode("hi") == list(b"hi")
    assert engine.encode("hi", chat=True) == list(b"<hi>:")
    save_byte_tokenizer(tmp_path, chat=False)
    with pytest.raises(PromptError, match="no chat template"):
        fake_engine(tmp_path, Script("x")).encode("hi", chat=True)


def test_next_logits_are_those_after_the_whole_text(tmp_path):
    engine = fake_engine(tmp_path, MODEL)
    logits = engine.next_logits([1, 2, 3])
    assert logits.shape == (8,)
    assert int(logits.argmax()) == MODEL.next_token([1, 2, 3])


def test_a_failing_pass_frees_the_engine(tmp_path):
    engine = fake_engine(tmp_path, MODEL, session=FakeSession(MODEL.next_token, vocab=MODEL.vocab, fail_on_run=3))
    with pytest.raises(BackendError, match=r"the generation failed \(RuntimeError: fault injected\)"):
        engine.generate([1, 2, 3])
    assert engine.generate([1, 2], GenerationConfig(max_new_tokens=7)).token_ids == MODEL.greedy([1, 2], 7)


def saved(directory, **engine_changes):
    save_manifest(make_manifest(engine=make_engine_facts(**engine_changes), files=describe_files(directory)), directory)


def test_load_refuses_bundles_and_engines_of_another_library(tmp_path):
    (tmp_path / "base.onnx").touch()
    save_manifest(make_manifest(files=describe_files(tmp_path)), tmp_path)
    with pytest.raises(ManifestError, match=r"is a bundle, not an engine: run `spec-trt build"):
        Engine.load(tmp_path)
    saved(tmp_path, library_version="0.0.1")
    with pytest.raises(ManifestError, match=r"built for ONNX Runtime 0\.0\.1, found .*build it again"):
        Engine.load(tmp_path)
