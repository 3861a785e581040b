"""Costs and texts for tests of tuning."""

from itertools import combinations
from pathlib import Path
from typing import Any

from spec_trt.manifest import EagleFacts, HeadFacts, MedusaFacts, describe_files, save_manifest
from spec_trt.runtime.costs import Costs, DraftCost, VerifyCost
from spec_trt.tune.attempt import Attempt
from spec_trt.tune.trace import Trace
from spec_trt.tune.tree_cost import TreeCost
from tests.test_manifest import make_engine_facts, make_manifest

SIZES: dict[str, Any] = {"layers": 1, "top_k": 4, "draft_vocab": 9, "draft_ids": None, "tree": [[0]]}
MEDUSA = MedusaFacts(heads=2, source="medusa", **SIZES)
EAGLE = EagleFacts(version=1, kv_heads=1, head_dim=2, hidden=4, feature_layers=[], source="eagle", **SIZES)


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


def save_engine(directory: Path) -> Path:
    """What an engine with both heads leaves of a directory, as far as its manifest goes."""
    (directory / "base.onnx").write_bytes(b"graph")
    heads = HeadFacts(medusa=MEDUSA, eagle=EAGLE)
    save_manifest(make_manifest(files=describe_files(directory), engine=make_engine_facts(), heads=heads), directory)
    (directory / "costs.json").write_text("{}")
    return directory
