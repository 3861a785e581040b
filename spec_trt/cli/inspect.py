"""`spec-trt inspect`: what a bundle or engine directory holds."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from spec_trt.cli.inspect_tensorrt import describe_tensorrt, engine_layers
from spec_trt.manifest import GraphFacts, Manifest, load_manifest
from spec_trt.table import format_table

__all__ = ["command"]


@click.command("inspect")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Compare every file's hash too, not only its size.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
@click.option(
    "--layers",
    is_flag=True,
    help="Print a TensorRT engine's own layers as JSON; needs a GPU that it was built for.",
)
def command(path: Path, verify: bool, as_json: bool, layers: bool) -> None:
    """Show what the bundle or engine directory PATH holds, and check that it is whole."""
    manifest = load_manifest(path, verify=verify)
    if layers:
        click.echo(json.dumps(engine_layers(path, manifest), indent=2))
    else:
        click.echo(json.dumps(asdict(manifest), indent=2) if as_json else _describe(path, manifest))


def _describe(path: Path, manifest: Manifest) -> str:
    parts = [
        _facts(path, manifest),
        *describe_tensorrt(path, manifest),
        *(_interface(name, graph) for name, graph in manifest.graphs.items()),
        format_table(
            ["file", "bytes", "sha256"],
            [[facts.path, f"{facts.bytes:,}", facts.sha256[:12]] for facts in manifest.files],
        ),
    ]
    return "\n\n".join(parts)


def _facts(path: Path, manifest: Manifest) -> str:
    model, engine, source = manifest.model, manifest.engine, manifest.source
    kind = f"engine ({engine.backend} {engine.library_version}, {engine.precision})" if engine else "bundle"
    return "\n".join([
        f"{path}: {kind} of {source.model}",
        f"model    {model.family}, {model.dtype}, {model.layers} layers, {model.heads} heads ({model.kv_heads} kv) "
        f"of {model.head_dim}, hidden {model.hidden}, vocab {model.vocab}",
        f"context  {model.max_positions} positions; ends at token ids {model.eos_ids}",
        f"made by  spec-trt {source.exporter_version}, torch {source.torch_version}, "
        f"transformers {source.transformers_version}",
        f"heads    {', '.join(_heads(manifest)) or 'none'}",
    ])  # fmt: skip


def _heads(manifest: Manifest) -> list[str]:
    """A line's words on each draft head."""
    medusa, eagle = manifest.heads.medusa, manifest.heads.eagle
    found = []
    if medusa is not None:
        found.append(f"medusa ({medusa.heads} heads, draft vocabulary {medusa.draft_vocab})")
    if eagle is not None:
        found.append(f"eagle (version {eagle.version}, draft vocabulary {eagle.draft_vocab})")
    return found


def _interface(name: str, graph: GraphFacts) -> str:
    rows = [
        [side, tensor.name, tensor.dtype, "[" + ", ".join(map(str, tensor.shape)) + "]"]
        for side, tensors in (("in", graph.inputs), ("out", graph.outputs))
        for tensor in tensors
        if not tensor.name.rpartition(".")[2].isdigit() or tensor.name.endswith(".0")
    ]
    return f"{name} graph ({graph.file}); per-layer tensors shown for layer 0\n" + format_table(
        ["", "name", "type", "shape"], rows
    )
