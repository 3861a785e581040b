"""Models of real sizes, built by the command for GPUs that are not here, within their time and memory."""

import os
import subprocess
import sys
import time

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spec_trt import names
from spec_trt.builder.tensorrt.network_report import load_report, report_file
from spec_trt.demo.run import demo_heads
from spec_trt.export.bundle import export_bundle
from spec_trt.export.config import ExportConfig
from spec_trt.export.quiet import quiet
from spec_trt.manifest import load_manifest
from tests.families import save_model

pytest.importorskip("tensorrt_rtx")
pytestmark = pytest.mark.slow


def run(*args):
    """Run the command: seconds, and bytes that it or a process of its own held at the most."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "spec_trt", *map(str, args)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.monotonic() - started, usage.ru_maxrss * 1024


@pytest.fixture(scope="module")
def smollm2_fp16(tmp_path_factory, smollm2_gguf):
    """SmolLM2-135M with the demo's heads, in fp16."""
    bundle, heads = tmp_path_factory.mktemp("smollm2-fp16") / "bundle", demo_heads()
    config = ExportConfig(
        model=str(smollm2_gguf), output=bundle, dtype="fp16", medusa=heads["medusa"], eagle=heads["eagle"], check=False
    )
    export_bundle(config)
    return bundle


@pytest.mark.parametrize("attention", ["plugin", "native"])
def test_smollm2_builds_in_three_minutes_and_four_gigabytes(smollm2_fp16, tmp_path, attention):
    options = ("--backend", "trt-rtx", "--compute-capability", "8.9,12.0", "--attention", attention)
    seconds, memory = run("build", smollm2_fp16, tmp_path / "engine", *options)
    assert seconds < 180
    assert memory < 4e9
    manifest = load_manifest(tmp_path / "engine", verify=True)
    assert set(manifest.graphs) == {names.BASE, names.MEDUSA, names.EAGLE, names.EAGLE_FUSE}
    reports = {name: load_report(tmp_path / "engine" / report_file(name)) for name in manifest.graphs}
    layers = {name: report.plugins.get(names.OP_NAME, 0) for name, report in reports.items()}
    plugins = (manifest.model.layers, 1) if attention == "plugin" else (0, 0)
    assert layers == {names.BASE: plugins[0], names.MEDUSA: 0, names.EAGLE: plugins[1], names.EAGLE_FUSE: 0}
    assert reports[names.BASE].engine_bytes < 1.2 * reports[names.BASE].weights_bytes  # shared by both GPUs


@pytest.mark.large
@pytest.mark.timeout(3600)
def test_billion_parameters_fit_into_24_gigabytes(tmp_path):
    save_model(_billion_parameters(), tmp_path / "model")
    _, exporting = run("export", tmp_path / "model", tmp_path / "bundle", "--dtype", "fp16", "--no-check")
    target = ("--backend", "trt-rtx", "--compute-capability", "8.9,12.0")
    _, building = run("build", tmp_path / "bundle", tmp_path / "engine", *target)
    assert max(exporting, building) < 24e9
    assert load_report(tmp_path / "engine" / report_file(names.BASE)).plugins == {names.OP_NAME: 16}


def _billion_parameters():
    """The shape of Llama 3.2 1B, 1.24 billion random weights."""
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    generator = torch.Generator().manual_seed(0)
    with quiet(), torch.device("meta"):
        model = LlamaForCausalLM(config).half()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.02, generator=generator) if parameter.ndim > 1 else parameter.fill_(1.0)
    model.tie_weights()
    return model
