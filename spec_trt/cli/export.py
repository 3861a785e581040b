"""`spec-trt export`: a model becomes a bundle."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spec_trt.export.config import DTYPES, STEPS, Dtype, ExportConfig
from spec_trt.ort import require_onnxruntime

if TYPE_CHECKING:
    from spec_trt.export.bundle import Exported

__all__ = ["command"]


@click.command("export")
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    default="fp32",
    show_default=True,
    help="Data type of weights, activations and cache.",
)
@click.option(
    "--medusa",
    type=click.Path(path_type=Path),
    help="Medusa heads, a directory or file in any public format.  [default: those in MODEL's own checkpoint, if any]",
)
@click.option(
    "--eagle",
    type=click.Path(path_type=Path),
    help="An EAGLE, EAGLE-2 or EAGLE-3 draft, a directory or file in any public format.  [default: none]",
)
@click.option(
    "--draft-vocab",
    type=click.IntRange(min=1),
    help="Let heads with the whole vocabulary draft only the so many most frequent ids of --draft-vocab-data.  "
    "[default: as the checkpoint has it]",
)
@click.option(
    "--draft-vocab-data",
    type=click.Path(path_type=Path),
    help="Texts to count ids in: JSON lines (messages, prompt and response, text) or plain text.  [default: none]",
)
@click.option(
    "--features", is_flag=True, help="Let the base graph give EAGLE-3's features without such a head.  [default: off]"
)
@click.option("--no-check", is_flag=True, help="Skip the comparison with PyTorch.  [default: compare]")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.  [default: refuse]")
def command(
    model: str,
    out: Path,
    dtype: Dtype,
    medusa: Path | None,
    eagle: Path | None,
    draft_vocab: int | None,
    draft_vocab_data: Path | None,
    features: bool,
    no_check: bool,
    force: bool,
) -> None:
    """Export MODEL, and draft heads for it, to the bundle directory OUT: ONNX graphs, tokenizer and manifest.

    MODEL is a local Hugging Face directory, a hub id, or a .gguf file.
    """
    config = ExportConfig(
        model=model,
        output=out,
        dtype=dtype,
        medusa=medusa,
        eagle=eagle,
        draft_vocab=draft_vocab,
        draft_vocab_data=draft_vocab_data,
        features=features,
        check=not no_check,
        replace=force,
    )
    if config.check:
        require_onnxruntime()  # what is imported from here on takes seconds
    with _bar() as begin:
        from spec_trt.export.bundle import export_bundle

        exported = export_bundle(config, begin)
    click.echo(_summary(exported, out))


@contextmanager
def _bar() -> Iterator[Callable[[str], None]]:
    """Show a bar of the export's steps on stderr; a step is done when the next one begins."""
    from tqdm import tqdm

    with tqdm(total=len(STEPS), desc=STEPS[0], bar_format="{desc:<7}{bar:30} {n_fmt}/{total_fmt} [{elapsed}]") as bar:

        def begin(step: str) -> None:
            bar.set_description_str(step, refresh=False)
            bar.n = STEPS.index(step)
            bar.refresh()

        yield begin
        bar.set_description_str("done", refresh=False)
        bar.update()


def _summary(exported: "Exported", out: Path) -> str:
    lines = list(exported.notes)
    if exported.parity is not None:
        parity = exported.parity
        lines.append(
            f"largest difference from PyTorch: {parity.largest:.2g} of an output's largest value "
            f"(in {parity.output}, {parity.passes} passes; allowed: {parity.bound:g})"
        )
    if not any(facts.path.startswith("tokenizer") for facts in exported.manifest.files):
        lines.append("the model has no tokenizer files: text prompts won't work with this bundle, token ids will")
    lines += [f"{facts.bytes:>15,}  {out / facts.path}" for facts in exported.manifest.files]
    return "\n".join(lines)
