"""Costs and texts for tests of tuning."""

from itertools import combinations

from spec_trt.runtime.costs import Costs, DraftCost, VerifyCost
from spec_trt.tune.attempt import Attempt
from spec_trt.tune.trace import Trace
from spec_trt.tune.tree_cost import TreeCost


def tree_cost(verify_ms, *, fixed_ms=0.0, level_ms=0.0, node_ms=0.0):
    return TreeCost(plain_ms=verify_ms[0], verify_ms=verify_ms, fixed_ms=fixed_ms, level_ms=level_ms, node_ms=node_ms)


def flat_costs(methods=("medusa", "eagle"), **draft):
    """Costs of a machine on which nodes are nearly free."""
    verify = [VerifyCost(batch=1, past=64, nodes=nodes, ms=10 + 0.01 * nodes) for nodes in (1, 8, 64)]
    parts = {"fixed_ms": 0.1, "level_ms": 0.1, "node_ms": 0.0} | draft
    return Costs(
        machine="a machine",
        threads=1,
        precision="fp32",
        verify=verify,
        draft={name: DraftCost(pass_ms=1, **parts) for name in methods},
    )


def all_trees(paths):
    """Every set of paths that has their beginnings too, but the empty one."""
    for size in range(1, len(paths) + 1):
        for chosen in combinations(paths, size):
            if all(path[:-1] in {(), *chosen} for path in chosen):
                yield list(chosen)


def trace(*ranks, prompt_tokens=1):
    """A generation: of each token, the ranks of the drafts that the text went on with; what followed them failed."""
    return Trace(prompt_tokens=prompt_tokens, attempts=[Attempt(tuple(path), failed=True) for path in ranks])
