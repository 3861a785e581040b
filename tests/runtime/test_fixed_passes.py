"""What a compiled engine fixes (the cache's rows, the mask's columns) changes no token, on graphs of ONNX Runtime."""

from dataclasses import replace

import pytest

from spec_trt import names
from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.builder.tensorrt.profiles import graph_profiles
from spec_trt.builder.tensorrt.settings import TensorRtSettings
from spec_trt.errors import BackendError, PromptError
from spec_trt.manifest import GraphFacts, TensorFacts, TensorRtFacts, load_manifest
from spec_trt.runtime.backend import OrtBackend
from spec_trt.runtime.drafters.heads import Heads
from spec_trt.runtime.engine import Engine
from spec_trt.runtime.generation import GenerationConfig
from spec_trt.runtime.head_loader import HeadLoader
from spec_trt.runtime.shape_profiles import Profile, choose_profile
from spec_trt.runtime.target import Target
from spec_trt.runtime.trt_backend import read_fixed_shapes

PROMPTS = [[65], [70, 71, 72, 70, 71], [3 + token * token % 117 for token in range(150)]]  # one, few, several chunks
NODES, LENGTH, CHUNK = 32, 256, 48
SETTINGS = TensorRtSettings(
    attention="plugin",
    max_batch=1,
    max_nodes=NODES,
    opt_batch=1,
    opt_nodes=8,
    prefill_chunk=CHUNK,
    max_length=LENGTH,
    workspace_bytes=None,
    timing_cache=None,
)
METHODS = [
    ("autoregressive", {}),
    ("ngram", {}),
    ("jacobi", {"num_draft_tokens": 5}),
    ("lookahead", {"window": 4, "ngram_size": 4, "guesses": 3}),
    ("medusa", {}),
    ("eagle", {}),
    ("eagle2", {"depth": 4, "top_k": 3, "total_tokens": 12, "node_probability": 0, "level_probability": 0}),
]


class CheckedSession:
    """A session that takes no pass which TensorRT's profiles would not."""

    def __init__(self, session, graph, facts, profiles):
        self.device = session.device
        self._session, self._graph, self._facts = session, graph, facts
        self._profiles = [
            Profile(
                index=index,
                name=name,
                smallest={tensor: tuple(low) for tensor, (low, _, _) in shapes.items()},
                largest={tensor: tuple(high) for tensor, (_, _, high) in shapes.items()},
            )
            for index, (name, shapes) in enumerate(profiles.items())
        ]

    def bind(self, inputs, outputs):
        dimensions = {tensor.name: tensor.shape for tensor in self._facts.inputs}
        shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
        choose_profile(self._graph, self._profiles, shapes, dimensions)
        return self._session.bind(inputs, outputs)


class FixedBackend(OrtBackend):
    """ONNX Runtime, with the passes that an engine of TensorRT's would be built for."""

    def __init__(self, directory, manifest, bundle):
        super().__init__(directory, manifest, device=None, threads=1)
        self._graphs = load_manifest(bundle).graphs
        self._facts = TensorRtFacts(
            attention="plugin",
            plugin_version="1",
            compute_capabilities=["8.9"],
            max_length=LENGTH,
            max_batch=1,
            max_nodes=NODES,
            prefill_chunk=CHUNK,
            profiles={name: graph_profiles(name, graph, SETTINGS) for name, graph in self._graphs.items()},
        )

    def open(self, graph):
        return CheckedSession(super().open(graph), graph, self._graphs[graph], self._facts.profiles[graph])

    def fixed_shapes(self, graph):
        return read_fixed_shapes(self._facts, graph)


def built(bundle, tmp_path_factory):
    directory = tmp_path_factory.mktemp("engine") / "engine"
    build_engine(BuildConfig(bundle=bundle, out=directory))
    manifest = load_manifest(directory)
    backend = FixedBackend(directory, manifest, bundle)
    base, shapes, load_heads = backend.open(names.BASE), backend.fixed_shapes(names.BASE), HeadLoader(manifest, backend)

    class Kept(Engine):
        """Keeps what it makes, for the tests to look at."""

        target: Target
        heads: Heads

    def new_target(batch, _cache_bytes):
        fixed.target = Target(base, manifest.model, batch=batch, fixed=shapes)
        return fixed.target

    def new_heads():
        Kept.heads = load_heads()
        return Kept.heads

    fixed = Kept(manifest, directory, new_target, new_heads)
    return Engine.load(directory, threads=1), fixed


@pytest.fixture(scope="module")
def engines(medusa_bundle, tmp_path_factory):
    return built(medusa_bundle, tmp_path_factory)


@pytest.fixture(scope="module")
def eagle3_engines(eagle3_bundle, tmp_path_factory):
    return built(eagle3_bundle, tmp_path_factory)


def generate(engine, prompt, method="autoregressive", options=None, count=40):
    config = GenerationConfig(method=method, options=options or {}, max_new_tokens=count, ignore_eos=True)
    return engine.generate(prompt, config)


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_every_method_gives_the_tokens_that_a_growing_cache_gives(engines, method, options):
    growing, fixed = engines
    for prompt in PROMPTS:
        expected, found = (generate(engine, prompt, method, options) for engine in (growing, fixed))
        assert found.token_ids == expected.token_ids
        assert (found.stats.passes, found.stats.nodes) == (expected.stats.passes, expected.stats.nodes)


@pytest.mark.parametrize(("method", "options"), METHODS[-2:])
def test_so_does_eagle_3(eagle3_engines, method, options):
    growing, fixed = eagle3_engines
    for prompt in PROMPTS:
        expected, found = (generate(engine, prompt, method, options) for engine in (growing, fixed))
        assert found.token_ids == expected.token_ids
        assert found.stats.nodes == expected.stats.nodes


def test_the_buffer_is_never_another_one_and_no_pass_is_bound_twice(engines):
    _, fixed = engines
    generate(fixed, PROMPTS[1], "eagle")
    target, draft = fixed.target, fixed.heads.eagle
    buffers, passes = (target.cache.buffer, draft.cache.buffer), dict(target._passes.kept)
    generate(fixed, PROMPTS[2], "eagle")
    generate(fixed, PROMPTS[1], "eagle")
    assert (target.cache.buffer, draft.cache.buffer) == buffers
    assert all(target._passes.kept[size] is bound for size, bound in passes.items())
    assert {size.window for size, _, _ in draft._passes.kept} == {CHUNK, 2 * NODES}
    assert {size.nodes for size, _, _ in draft._passes.kept if size.causal} <= {8, 16, 32, CHUNK}
    assert {size.nodes for size, _, _ in target._passes.kept if not size.project} <= {8, 16, 32, CHUNK}


def test_a_sequence_runs_to_the_end_of_the_context(engines):
    growing, fixed = engines
    for method in ("eagle", "eagle2", "lookahead"):
        found = generate(fixed, PROMPTS[2], method, count=1000)
        assert len(found.token_ids) == fixed.max_length - len(PROMPTS[2])
        assert found.token_ids == generate(growing, PROMPTS[2], method, count=1000).token_ids


def test_a_tree_that_there_is_no_room_for_is_refused(engines):
    _, fixed = engines
    with pytest.raises(BackendError, match=f"at most {NODES} nodes, found 41: draft fewer"):
        generate(fixed, PROMPTS[1], "jacobi", {"num_draft_tokens": 40}, count=60)


def test_a_cache_that_may_not_grow_says_so(engines):
    _, fixed = engines
    with pytest.raises(PromptError):
        generate(fixed, [5] * LENGTH)
    target = fixed.new_target()
    with pytest.raises(BackendError, match=f"cache holds {LENGTH} rows, found {LENGTH + 1}: shorten the text"):
        target.cache.reserve(LENGTH + 1)


def test_a_cache_has_rows_for_every_sequence_to_begin_aligned():
    past = TensorFacts(name=names.past_key(0), dtype="float16", shape=["batch", 3, "past", 8])
    profiles = graph_profiles(
        names.BASE, GraphFacts(file="base.onnx", inputs=[past], outputs=[]), replace(SETTINGS, max_length=100)
    )
    assert {shape[2] for profile in profiles.values() for shape in profile[past.name]} == {112}
