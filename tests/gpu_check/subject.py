"""The model that is checked, and the prompts: files that were carried along, or random weights of the same shape."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from spec_trt.demo.run import demo_heads
from spec_trt.export.config import Dtype, ExportConfig
from spec_trt.export.quiet import quiet
from spec_trt.heads.eagle import EagleConfig, EagleDraft
from spec_trt.heads.eagle_checkpoint import save_eagle
from spec_trt.heads.medusa import MedusaConfig, MedusaHeads
from spec_trt.heads.medusa_checkpoint import save_medusa
from spec_trt.heads.target import HeadTarget, head_target

RANDOM = "random"

SMOLLM2_135M: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "eos_token_id": 2,
}

TEXTS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, and then one that returns all of them up to n.",
    "Repeat this list, then sort it: pear, apple, fig, cherry, banana, apple, fig, pear, apple.",
    "What is 17 times 23? Show every step.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is checked.

    Attributes:
        config: Model, heads and type, as for an export.
        name: What tables call it.
    """

    config: ExportConfig
    name: str

    def as_type(self, dtype: Dtype) -> "Subject":
        """The same in another type."""
        return replace(self, config=replace(self.config, dtype=dtype))


def encoded_prompts(tokenizer: Any) -> list[list[int]]:
    """The texts as token ids, in the chat template where there is one; drawn ones without a tokenizer.

    Args:
        tokenizer: transformers' own; None where the model has none.
    """
    if tokenizer is None:
        return drawn_prompts(count=len(TEXTS), vocab=300, length=48)
    texts = list(TEXTS)
    if tokenizer.chat_template:
        chats = [[{"role": "user", "content": text}] for text in TEXTS]
        texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    return [list(tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"]) for text in texts]


def choose_subject(model: str, *, medusa: Path | None, eagle: Path | None, dtype: Dtype, work: Path) -> Subject:
    """The subject that the command line names.

    Args:
        model: A model's directory or `.gguf` file, or `random`.
        medusa: Its Medusa heads; those of the demo when None and the model is of the demo's shape.
        eagle: Its EAGLE head; likewise.
        dtype: Of weights and cache.
        work: Where random weights go.
    """
    if model == RANDOM:
        directory = write_random(work / "random", SMOLLM2_135M)
        medusa, eagle = directory / "medusa", directory / "eagle"
        model = str(directory / "model")
    elif medusa is None and eagle is None and _is_demo_shaped(Path(model)):
        medusa, eagle = demo_heads()["medusa"], demo_heads()["eagle"]
    config = ExportConfig(model=model, output=work / "bundle", medusa=medusa, eagle=eagle, dtype=dtype, check=False)
    return Subject(config=config, name=Path(model).name)


def _is_demo_shaped(model: Path) -> bool:
    if model.suffix == ".gguf":
        return True
    settings = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return all(settings.get(name) == SMOLLM2_135M[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers"))


def write_random(directory: Path, shape: dict[str, Any], *, top: int = 3) -> Path:
    """Write a model of a shape with random weights, and random heads for it: `model`, `medusa` and `eagle`.

    The weights are larger than those that training begins with, whose logits would all be nearly the same.

    Args:
        directory: Where to.
        shape: transformers' settings of a llama.
        top: Medusa heads.
    """
    shutil.rmtree(directory, ignore_errors=True)
    torch.manual_seed(0)
    with quiet():
        model = AutoModelForCausalLM.from_config(LlamaConfig(**shape)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=2 * parameter.shape[-1] ** -0.5)
        model.save_pretrained(directory / "model")
    target = head_target(model)
    for name in ("medusa", "eagle"):
        (directory / name).mkdir()
    medusa = MedusaConfig(hidden=target.hidden, heads=top, layers=1, draft_vocab=target.vocab, shared_projection=True)
    save_medusa(MedusaHeads(medusa, [target.projection]), directory / "medusa", draft_ids=None, standalone=False)
    save_eagle(_random_eagle(model.config, target), directory / "eagle", draft_ids=None, standalone=False)
    return directory


def _random_eagle(config: LlamaConfig, target: HeadTarget) -> EagleDraft:
    shape = EagleConfig(
        version=1,
        hidden=target.hidden,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=target.hidden // config.num_attention_heads,
        target_hidden=target.hidden,
        draft_vocab=target.vocab,
        rope_parameters=dict(target.rope_parameters or {}),
        max_positions=target.max_positions,
    )
    return EagleDraft(shape, target.embedding, target.projection)


def drawn_prompts(*, count: int, vocab: int, length: int, seed: int = 0) -> list[list[int]]:
    """Random tokens, each prompt one half of them twice."""
    generator = torch.Generator().manual_seed(seed)
    halves = torch.randint(3, vocab, (count, length // 2), generator=generator).tolist()
    return [[*half, *half] for half in halves]


def long_prompt(prompts: Sequence[Sequence[int]], length: int) -> list[int]:
    """A prompt of some length: the prompts' tokens over and over."""
    tokens = [token for prompt in prompts for token in prompt]
    return (tokens * (length // len(tokens) + 1))[:length]
