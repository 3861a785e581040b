"""The trainer of Medusa-2: a learning rate of its own for the base, which waits until the heads are warm."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from spec_trt.training.config import JointSettings
from spec_trt.training.joint import JointTraining
from spec_trt.training.trainer import HeadTrainer

__all__ = ["HeadsWarmup", "JointTrainer", "heads_warmup_steps", "rate_factor"]


def rate_factor(schedule: str, step: int, steps: int, warmup: int) -> float:
    """The learning rate at a step, as a share of its peak: a linear rise, then as the schedule says.

    Args:
        schedule: cosine, linear, or constant_with_warmup.
        step: From 0.
        steps: All of them.
        warmup: Those of the rise.
    """
    if step < warmup:
        return step / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done}.get(schedule, 1.0)


class HeadsWarmup(TrainerCallback):  # type: ignore[misc]
    """Tells the module whether only its heads are trained in a step."""

    def __init__(self, module: JointTraining, share: float) -> None:
        self._module = module
        self._share = share

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
        """Decide by the step's number, so that a resumed training decides alike."""
        self._module.warming = state.global_step < heads_warmup_steps(state.max_steps, self._share)


def heads_warmup_steps(steps: int, share: float) -> int:
    """How many of the steps train only the heads."""
    return round(steps * share)


class JointTrainer(HeadTrainer):
    """Two groups of parameters, heads and base, each with its own rise and fall."""

    joint: JointSettings
    optimizer: torch.optim.Optimizer | None
    lr_scheduler: LambdaLR | None

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:  # noqa: ANN401, ARG002 - Trainer's signature
        """AdamW over both groups."""
        if self.optimizer is None:
            module = cast(JointTraining, self.accelerator.unwrap_model(self.model))
            groups = [
                {"params": list(module.medusa.parameters()), "lr": self.args.learning_rate},
                {"params": list(module.base_parameters()), "lr": self.joint.base_learning_rate},
            ]
            betas = (self.args.adam_beta1, self.args.adam_beta2)
            self.optimizer = torch.optim.AdamW(groups, betas=betas, eps=self.args.adam_epsilon, weight_decay=0.0)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:  # noqa: ANN401
        """The base's rate is zero while the heads warm up, then rises as theirs did."""
        if self.lr_scheduler is None:
            used = cast(torch.optim.Optimizer, optimizer or self.optimizer)
            steps, warmup = num_training_steps, self.args.get_warmup_steps(num_training_steps)
            wait = heads_warmup_steps(steps, self.joint.heads_warmup)
            heads = self._factor(0, steps, warmup)
            self.lr_scheduler = LambdaLR(used, [heads, self._factor(wait, steps, warmup)])
        return self.lr_scheduler

    def _factor(self, start: int, steps: int, warmup: int) -> Callable[[int], float]:
        schedule = str(self.args.lr_scheduler_type.value)
        return lambda step: rate_factor(schedule, step - start, steps - start, warmup) if step >= start else 0.0
