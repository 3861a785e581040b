"""A tiny model that reads and writes bytes and chats, and data for it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer

from spec_trt.training.config import EagleSettings, HeadSettings, MedusaSettings, TrainConfig
from spec_trt.training.trainer import HeadTrainer
from tests.families import make_model, save_model
from tests.runtime.fake_engine import EOS, save_byte_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def chat_tokenizer(directory, template=TEMPLATE):
    save_byte_tokenizer(directory, chat=template is not None)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return tokenizer


def chat_model(
    directory: Path, *, family: str = "llama", layers: int = 2, tied: bool = False, template: str | None = TEMPLATE
) -> Path:
    """A Hugging Face directory; byte b is token b, and EOS ends a turn."""
    model = make_model(
        family,
        vocab_size=EOS + 1,
        eos_token_id=EOS,
        num_hidden_layers=layers,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
    )
    save_model(model, directory)
    chat_tokenizer(directory, template)
    return directory


class KilledError(Exception):
    """Stands for the end of a process in the middle of a training."""


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """Let a training die in a step, counted from 0."""
    train_step = HeadTrainer.training_step

    def killed_step(self, *arguments, **options):
        if self.state.global_step == step:
            raise KilledError
        return train_step(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeadTrainer, "training_step", killed_step)
        with pytest.raises(KilledError):
            yield


def write_lines(file: Path, lines) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def turn(role, content):
    return {"role": role, "content": content}


def conversation(question, answer, **more):
    return {"messages": [turn("user", question), turn("assistant", answer)], **more}


HEADS: dict[str, HeadSettings] = {
    "medusa": MedusaSettings(heads=2),
    "eagle": EagleSettings(token_weight=1.0, unroll=2),
    "eagle3": EagleSettings(version=3, token_weight=1.0, unroll=2),
}
RULE = {"a": "bcbcbcbcbcbc", "d": "efgefgefgefg", "h": "ihihihihihih"}


def write_rule(file: Path) -> Path:
    """Conversations whose answers follow from the question's first letter."""
    return write_lines(
        file, [conversation(f"{letter}{n}", answer) for n in range(20) for letter, answer in RULE.items()]
    )


def tiny_config(model: Path, data: Path, out: Path) -> TrainConfig:
    """A training of a second or two that learns the rule."""
    return TrainConfig(
        model=str(model),
        out=out,
        head=HEADS["eagle"],
        data=(data,),
        held_out=0.1,
        batch_size=4,
        max_steps=12,
        learning_rate=2e-2,
        clip=5.0,
        precision="fp32",
        evaluate_every=6,
        checkpoint_every=6,
    )


def weights(directory: Path) -> dict[str, Tensor]:
    """What a checkpoint holds."""
    [file] = directory.glob("*.safetensors")
    return load_file(file)
