"""transformers' Trainer for draft heads: batches, held-out accuracy, progress and checkpoints."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments

from spec_trt.training.config import TrainConfig
from spec_trt.training.conversations import TokenSequence
from spec_trt.training.head_module import HeadModule

__all__ = ["HeadTrainer", "Progress", "make_trainer", "pad_batch"]

Example = dict[str, Any]


def pad_batch(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Pad to the longest on the right: [batch, nodes] ids and masks, and the sequences' [batch] places."""
    nodes = max(len(example["input_ids"]) for example in examples)
    input_ids = torch.zeros(len(examples), nodes, dtype=torch.int64)
    attention_mask, loss_mask = (torch.zeros(len(examples), nodes, dtype=torch.bool) for _ in range(2))
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        input_ids[row, :length] = torch.tensor(example["input_ids"])
        attention_mask[row, :length] = True
        loss_mask[row, :length] = torch.tensor(example["loss_mask"])
    index = torch.tensor([example["index"] for example in examples])
    return {"input_ids": input_ids, "attention_mask": attention_mask, "loss_mask": loss_mask, "index": index}


class HeadTrainer(Trainer):  # type: ignore[misc]
    """Measures held-out accuracy with the head's own `measure`.

    Attributes:
        rank_accuracy: Per head or step, per rank, as last measured: how often that candidate is right.
        measured_rows: Per head or step: on how many rows.
    """

    control: Any
    rank_accuracy: list[list[float]] | None = None
    measured_rows: Sequence[float] = ()

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:  # noqa: ANN401 - Trainer's own signature
        """Accuracy of each head or step on the held-out sequences, logged as numbers."""
        module = cast(HeadModule, self.accelerator.unwrap_model(self.model))
        was_training = module.training
        module.eval()
        total: list[Tensor] = []
        for batch in self.get_eval_dataloader():
            part = module.measure(**self._prepare_inputs(batch))
            numbers = torch.cat([part.hits, part.rows[:, None], part.loss[:, None]], dim=-1).double()
            total.append(self.accelerator.reduce(numbers, "sum"))
        module.train(was_training)
        sums = torch.stack(total).sum(0)
        self.measured_rows = sums[:, -2].tolist()
        self.rank_accuracy = (sums[:, :-2] / sums[:, -2:-1].clamp(min=1)).tolist()
        metrics = _metrics(self.rank_accuracy, (sums[:, -1] / sums[:, -2].clamp(min=1)).tolist(), module.labels)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


AnyTrainer = TypeVar("AnyTrainer", bound=HeadTrainer)


_SHOWN = (1, 4)
"""Accuracy is shown for so many best tokens: the children that a tree's node has."""


def _metrics(
    rank_accuracy: Sequence[Sequence[float]], losses: Sequence[float], labels: Sequence[str]
) -> dict[str, float]:
    """Names what was measured of each head or step."""
    metrics: dict[str, float] = {}
    for label, ranks, loss in zip(labels, rank_accuracy, losses, strict=True):
        metrics |= {f"eval_{label} top-{count}": sum(ranks[:count]) for count in _SHOWN}
        metrics[f"eval_{label} loss"] = loss
    metrics["eval_loss"] = sum(losses)
    return metrics


class Progress(TrainerCallback):  # type: ignore[misc]
    """A bar on stderr, and a row of accuracies at each evaluation."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._bar: tqdm[Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Open the bar, and name the columns."""
        if state.is_world_process_zero:
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc="train", unit="step")
            columns = [f"{label} top-{'/'.join(map(str, _SHOWN))}" for label in self._labels]
            self._bar.write("  ".join([f"{'step':>6}", f"{'tokens':>10}", *columns]), file=sys.stderr)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Show the loss beside the bar."""
        if self._bar is not None and logs and "loss" in logs:
            self._bar.set_postfix(loss=f"{logs['loss']:.4f}")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Write a row."""
        if self._bar is None or metrics is None:
            return
        cells = [
            "/".join(f"{metrics[f'eval_{label} top-{rank}']:.3f}" for rank in _SHOWN).rjust(len(label) + 8)
            for label in self._labels
        ]
        row = [f"{state.global_step:>6}", f"{state.num_input_tokens_seen:>10}", *cells]
        self._bar.write("  ".join(row), file=sys.stderr)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def make_trainer(
    kind: type[AnyTrainer],
    config: TrainConfig,
    module: HeadModule,
    train: Sequence[TokenSequence],
    held_out: Sequence[TokenSequence],
    directory: Path,
) -> AnyTrainer:
    """Set up a training whose checkpoints lie in `directory`.

    A sequence's place is its index in `train`, and behind those in `held_out`.
    """
    examples = [
        {"input_ids": sequence.input_ids, "loss_mask": sequence.loss_mask, "index": index}
        for index, sequence in enumerate([*train, *held_out])
    ]
    trainer = kind(
        model=module,
        args=_arguments(kind, config, directory, measures=bool(held_out)),
        data_collator=pad_batch,
        train_dataset=examples[: len(train)],
        eval_dataset=examples[len(train) :] or None,
        callbacks=[Progress(module.labels)],
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def _arguments(kind: type[HeadTrainer], config: TrainConfig, directory: Path, *, measures: bool) -> TrainingArguments:
    """The settings in transformers' words."""
    return TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.schedule,
        warmup_steps=config.warmup,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        weight_decay=0.0,
        adam_beta2=0.95,
        max_grad_norm=config.clip,
        seed=config.seed,
        train_sampling_strategy="group_by_length",
        eval_strategy="steps" if measures else "no",
        eval_steps=config.evaluate_every,
        save_steps=config.checkpoint_every,
        save_total_limit=2,
        logging_steps=10,
        include_num_input_tokens_seen="non_padding",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        report_to="none",
        log_level="error",
        disable_tqdm=True,
        ddp_find_unused_parameters=kind is not HeadTrainer,  # a base that waits has none that are used
        use_cpu=not torch.cuda.is_available(),
    )
