"""The command line of the check."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_trt.export.config import DTYPES
from spec_trt.tensorrt import TENSORRT_BACKENDS
from tests.gpu_check.found import Found
from tests.gpu_check.parts import PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where what parts share is, or will be made.

    Attributes:
        bundle: In the type that is checked.
        ort_engine: ONNX Runtime's, in fp32.
        work: Everything else.
    """

    bundle: Path
    ort_engine: Path
    work: Path

    @property
    def prepared(self) -> bool:
        """Whether bundle and reference engine are there: they are made whole or not at all."""
        return all((path / "manifest.json").is_file() for path in (self.bundle, self.ort_engine))


def files_of(options: argparse.Namespace, work: Path) -> Files:
    """The files that were given, and where those are that were not."""
    bundle: Path | None = options.bundle
    ort_engine: Path | None = options.ort_engine
    return Files(
        bundle=bundle or work / f"bundle-{options.dtype}", ort_engine=ort_engine or work / "engine-ort", work=work
    )


def parse(arguments: Sequence[str], description: str | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu_check",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="random", help="directory, .gguf file or `random`  [default: random]")
    parser.add_argument("--medusa", type=Path, help="Medusa heads  [default: the demo's, where they fit the model]")
    parser.add_argument("--eagle", type=Path, help="an EAGLE head  [default: the demo's, where they fit the model]")
    parser.add_argument("--dtype", choices=DTYPES[1:], default="fp16", help="of the model  [default: fp16]")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"[default: {','.join(PARTS)}]")
    parser.add_argument("--backend", choices=list(TENSORRT_BACKENDS), help="[default: the first library found]")
    parser.add_argument("--bundle", type=Path, help="exported in --dtype  [default: made in --work]")
    parser.add_argument("--ort-engine", type=Path, help="of ONNX Runtime in fp32  [default: made of the bundle]")
    parser.add_argument(
        "--work", type=Path, help="where files are made, and found that are there already  [default: a temporary one]"
    )
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), help="[default: %(default)s]")
    parser.add_argument("--tokens", type=int, default=96, help="generated for each prompt  [default: %(default)s]")
    parser.add_argument("--length", type=int, default=2048, help="rows of the caches  [default: %(default)s]")
    parser.add_argument(
        "--past", type=int, default=256, help="tokens that timed passes stand behind  [default: %(default)s]"
    )
    parser.add_argument("--seconds", type=float, default=450, help="for everything  [default: %(default)s]")
    return parser.parse_args(arguments)


def _parts(text: str) -> list[str]:
    asked = text.split(",")
    unknown = [part for part in asked if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}: expected some of {','.join(PARTS)}")
    return [part for part in PARTS if part in asked]


def choose_backend(asked: str | None, found: Found) -> str | None:
    """The TensorRT back end to check: a process can use only one of the two libraries."""
    if asked is not None:
        return asked if asked in found.tensorrt else None
    return found.tensorrt[0] if found.tensorrt else None
