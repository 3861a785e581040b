"""The model that is checked, and the prompts: files that were carried along, or random weights of the same shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from spec_trt.demo.run import demo_heads
from spec_trt.export.config import Dtype, ExportConfig
from spec_trt.export.load import load_config
from spec_trt.export.quiet import quiet
from spec_trt.export.source import locate
from spec_trt.files import atomic_directory
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
        notes: What should be known of it.
    """

    config: ExportConfig
    notes: Sequence[str] = ()


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


def bundle_prompts(directory: Path) -> list[list[int]]:
    """The same by the tokenizer of a bundle or engine."""
    has_one = (directory / "tokenizer_config.json").is_file()
    return encoded_prompts(AutoTokenizer.from_pretrained(directory, local_files_only=True) if has_one else None)


def choose_subject(model: str, *, medusa: Path | None, eagle: Path | None, dtype: Dtype, work: Path) -> Subject:
    """The subject that the command line names.

    Args:
        model: A model's directory or `.gguf` file, or `random`.
        medusa: Its Medusa heads; those of the demo when neither is given and the model is of the demo's shape.
        eagle: Its EAGLE head; likewise.
        dtype: Of weights and cache.
        work: Where random weights are, or go.
    """
    notes = []
    if model == RANDOM:
        directory = work / "random"
        if not directory.is_dir():
            write_random(directory, SMOLLM2_135M)
        model, medusa, eagle = str(directory / "model"), directory / "medusa", directory / "eagle"
    elif medusa is None and eagle is None:
        if _is_demo_shaped(model):
            medusa, eagle = demo_heads()["medusa"], demo_heads()["eagle"]
        else:
            notes.append(
                f"{model} is not of the shape that the demo's heads are for: medusa, eagle and eagle2 are left out "
                "(give heads with --medusa and --eagle)"
            )
    config = ExportConfig(model=model, output=work / "bundle", medusa=medusa, eagle=eagle, dtype=dtype, check=False)
    return Subject(config=config, notes=tuple(notes))


def _is_demo_shaped(model: str) -> bool:
    settings = load_config(locate(model))
    shape = ("vocab_size", "hidden_size", "num_hidden_layers")
    return all(getattr(settings, name, None) == SMOLLM2_135M[name] for name in shape)


def write_random(directory: Path, shape: dict[str, Any], *, top: int = 3) -> Path:
    """Write a model of a shape with random weights, and random heads for it: `model`, `medusa` and `eagle`.

    The weights are larger than those that training begins with, whose logits would all be nearly the same.

    Args:
        directory: Where to.
        shape: transformers' settings of a llama.
        top: Medusa heads.
    """
    torch.manual_seed(0)
    with atomic_directory(directory, replace=True) as made:
        model = _random_model(shape)
        with quiet():
            model.save_pretrained(made / "model")
        target = head_target(model)
        for name in ("medusa", "eagle"):
            (made / name).mkdir()
        medusa = MedusaConfig(
            hidden=target.hidden, heads=top, layers=1, draft_vocab=target.vocab, shared_projection=True
        )
        save_medusa(MedusaHeads(medusa, [target.projection]), made / "medusa", draft_ids=None, standalone=False)
        save_eagle(_random_eagle(model.config, target), made / "eagle", draft_ids=None, standalone=False)
    return directory


def _random_model(shape: dict[str, Any]) -> Any:
    with quiet():
        model = AutoModelForCausalLM.from_config(LlamaConfig(**shape)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=2 * parameter.shape[-1] ** -0.5)
    return model


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
