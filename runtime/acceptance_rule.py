"""Which acceptance rule a sequence is decoded by: chosen once, before its first pass."""

from spec_trt.runtime.accept import GREEDY, Acceptance, SampledAcceptance
from spec_trt.runtime.rejection import RejectionAcceptance
from spec_trt.runtime.sampler import Sampler
from spec_trt.runtime.typical import TypicalAcceptance

__all__ = ["acceptance_rule"]


def acceptance_rule(sampler: Sampler) -> Acceptance:
    """The rule of a sequence.

    At temperature 0 nothing is drawn, so drafts are not either and every rule is the greedy one; with a repetition
    penalty that one needs the logits too.

    Args:
        sampler: The sequence's.
    """
    sampling = sampler.sampling
    if sampling.is_greedy:
        return GREEDY if sampling.repetition_penalty == 1 else SampledAcceptance(sampler)
    if sampling.acceptance == "typical":
        return TypicalAcceptance(sampler)
    return RejectionAcceptance(sampler) if sampling.draft_sampling else SampledAcceptance(sampler)
