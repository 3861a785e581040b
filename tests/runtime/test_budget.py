"""Trees sized by what they cost and gain: in a world whose costs and acceptance are known exactly."""

import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec_trt.errors import ConfigError, ManifestError
from spec_trt.runtime import GenerationConfig, Sampling
from spec_trt.runtime.allowance import UNLIMITED, Size, sizes_up_to
from spec_trt.runtime.budget import Budget
from spec_trt.runtime.costs import COSTS_FILE, Costs, DraftCost, VerifyCost
from spec_trt.runtime.drafters import METHODS
from spec_trt.runtime.outlook import Outlook, Worth
from spec_trt.runtime.tree import ROOT, TreeBuilder
from tests.runtime.fake_engine import fake_engine
from tests.runtime.fakes import FakeTarget

MODEL = FakeTarget(vocab=8, order=2, period=5)


def costs(per_node: float = 0.5, *, draft_ms: float = 0.0, row_ms: float = 0.0, batches=(1, 8)) -> Costs:
    """A pass of one node takes 10 ms, each further one of any sequence `per_node`."""
    verify = [
        VerifyCost(batch=batch, nodes=nodes, past=past, ms=10 + per_node * (nodes * batch - 1))
        for batch in batches
        for nodes in (1, 2, 4, 8, 16, 32)
        for past in (64, 512)
    ]
    drafts = {
        method: DraftCost(pass_ms=draft_ms, fixed_ms=draft_ms, level_ms=0.0, node_ms=row_ms) for method in METHODS
    }
    return Costs(machine="a test", threads=1, precision="fp32", verify=verify, draft=drafts)


def chain(nodes: int, claimed: float | None = None):
    builder = TreeBuilder(0)
    chain = builder.add_chain(ROOT, [1] * nodes)
    if claimed is not None:
        builder.chances |= {node: claimed**depth for depth, node in enumerate(chain, 1)}
    return builder.build()


@dataclass
class Simulated:
    """A sequence that drafts chains, each further node of which is accepted with some probability.

    Where it claims one, it leaves out what does not pay by its claims, as drafters with a head do.
    """

    chance: float
    most: int = 8
    draft_ms: float = 0.0
    method: str = "ngram"
    budget: int | Literal["auto", "fixed"] = "auto"
    claimed: float | None = None
    outlook: Outlook | None = None
    dice: random.Random = field(default_factory=lambda: random.Random(5))
    drafted: list[int] = field(default_factory=list)
    has_drafted: bool = False
    emitted: int = 0
    backlog: int = 0

    def sizes(self):
        return [Size(nodes=nodes) for nodes in sizes_up_to(self.most)]

    def take(self, allowance) -> int:
        """Draft and verify; the nodes of the tree."""
        nodes = min(allowance.nodes, self.most)
        if self.claimed is not None:
            nodes = min(nodes, allowance.affordable([np.log(self.claimed) * depth for depth in range(1, nodes + 1)]))
        tree = chain(nodes, self.claimed)
        accepted = 0
        while accepted < len(tree) - 1 and self.dice.random() < self.chance:
            accepted += 1
        if self.outlook is not None:
            self.outlook.learn(tree, range(accepted + 1), allowance.nodes)
        self.has_drafted = allowance.nodes > 0
        self.backlog = 0 if self.has_drafted else self.backlog + 1
        self.drafted.append(len(tree) - 1)
        self.emitted += accepted + 1
        return len(tree)


def run(budget: Budget, sequences: list[Simulated], passes: int, world: Costs, *, coming: int = 0) -> float:
    """Tokens per millisecond over that plain decoding of the same batch would have had."""
    spent, plain = 0.0, 0.0
    for sequence in sequences:
        sequence.emitted = 0
    for _ in range(passes):
        allowances = budget.allow(sequences, [64] * len(sequences), coming=[64] * coming)
        nodes = max(sequence.take(allowance) for sequence, allowance in zip(sequences, allowances, strict=True))
        drafting = sum(sequence.draft_ms for sequence in sequences if sequence.has_drafted)
        spent += world.verify_ms(nodes, past=64, batch=len(sequences)) + drafting
        plain += world.verify_ms(1, past=64, batch=len(sequences))
    emitted = sum(sequence.emitted for sequence in sequences) / len(sequences)
    return (emitted / spent) / (passes / plain)


def best_fixed(chance: float, world: Costs, draft_ms: float, most: int = 8, batch: int = 1) -> float:
    """The best size of chain's expected speed-up."""
    plain = world.verify_ms(1, past=64, batch=batch)
    rates = [1.0]
    for nodes in range(1, most + 1):
        gain = sum(chance**depth for depth in range(nodes + 1))
        rates.append(gain * plain / (world.verify_ms(nodes + 1, past=64, batch=batch) + batch * draft_ms))
    return max(rates)


@pytest.mark.parametrize("per_node", [0.05, 0.5, 2.0, 9.0])
@pytest.mark.parametrize("draft_ms", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("chance", [0.0, 0.05, 0.3, 0.6, 0.9, 1.0])
def test_it_is_nearly_as_fast_as_the_best_size_and_never_much_slower_than_plain(chance, draft_ms, per_node):
    world = costs(per_node, draft_ms=draft_ms)
    budget, ratios = Budget(lambda: world), []
    for seed in range(2):
        sequence = Simulated(chance, draft_ms=draft_ms, dice=random.Random(seed))
        ratios.append(run(budget, [sequence], 300, world))
    best = best_fixed(chance, world, draft_ms)
    assert np.mean(ratios) >= 0.97
    assert np.mean(ratios) >= 0.92 * best


@pytest.mark.parametrize("claimed", [None, 0.8])
def test_it_comes_back_when_drafts_pay_again(claimed):
    world = costs(1.0, draft_ms=1.0)
    budget, sequence = Budget(lambda: world), Simulated(0.0, draft_ms=1.0, claimed=claimed)
    run(budget, [sequence], 200, world)
    assert np.mean(sequence.drafted[-60:]) < 0.2
    sequence.chance = 0.95
    assert run(budget, [sequence], 300, world) > 1.5
    assert np.mean(sequence.drafted[-60:]) > 5


def test_a_full_batch_has_smaller_trees():
    world = costs(0.5)
    means = []
    for batch in (1, 4, 8):
        budget = Budget(lambda: world)
        sequences = [Simulated(0.6, dice=random.Random(seed)) for seed in range(batch)]
        assert run(budget, sequences, 300, world) >= 0.97
        means.append(np.mean([sequence.drafted[-100:] for sequence in sequences]))
    assert means[0] > means[1] > means[2]


@pytest.mark.parametrize("claimed", [None, 0.6])
def test_who_waits_for_others_drafts_no_more_than_pays_beside_them(claimed):
    """In a pass of all nine, of 14 ms, a token saves its own ninth: what is bought dearer than that is lost."""
    world = costs(0.5, draft_ms=2.0, batches=(1, 9))
    sequence, means = Simulated(0.6, draft_ms=2.0, claimed=claimed), []
    budget = Budget(lambda: world)
    for coming in (0, 8, 0):
        run(budget, [sequence], 300, world, coming=coming)
        means.append((np.mean(sequence.drafted[-300:-290]), np.mean(sequence.drafted[-200:])))
    assert means[0][1] > 1
    assert max(means[1]) < 0.2  # at once
    assert min(means[2]) > 0.5


def test_a_batch_that_was_never_measured_is_not_reckoned_with():
    drafted = []
    for coming in (0, 8):
        world, sequence = costs(0.5, draft_ms=2.0, batches=(1,)), Simulated(0.6, draft_ms=2.0)
        run(Budget(partial(replace, world)), [sequence], 300, world, coming=coming)
        drafted.append(sequence.drafted)
    assert drafted[0] == drafted[1]


def test_the_rows_of_those_who_come_count():
    """Where rows cost much, a token of theirs is dear, and what is drafted meanwhile buys one cheaply."""
    world = replace(
        costs(), verify=[replace(cost, ms=cost.ms * (1 if cost.past < 100 else 20)) for cost in costs().verify]
    )
    sizes = []
    for rows in (64, 512):
        [allowance] = Budget(lambda: world).allow([Simulated(0.6)], [64], coming=[rows] * 7)
        sizes.append(allowance.nodes)
    assert sizes[1] > sizes[0]


def test_trials_that_were_dear_are_not_made_up_for_when_they_are_cheap():
    world = costs(2.0, draft_ms=20.0, batches=(1, 9))
    budget, sequence = Budget(lambda: world), Simulated(0.0, draft_ms=20.0)
    run(budget, [sequence], 200, world)
    run(budget, [sequence], 2000, world, coming=8)
    run(budget, [sequence], 60, world)
    assert not any(sequence.drafted[-60:])  # one takes two passes more; so much is saved in 700


def test_who_waits_for_others_still_drafts_what_costs_next_to_nothing():
    world, sequence = costs(0.05), Simulated(0.9)
    run(Budget(lambda: world), [sequence], 300, world, coming=7)
    assert np.mean(sequence.drafted[-200:]) > 6


@pytest.mark.parametrize("claimed", [None, 0.9])
def test_a_batch_finds_what_pays_for_all_and_for_none_alone(claimed):
    bad = Worth(accepted=[0.02] * 8, present=[1.0] * 8)
    world = replace(costs(0.5), worth={"ngram": bad})
    sequences = [Simulated(0.9, claimed=claimed, dice=random.Random(seed)) for seed in range(8)]
    budget = Budget(lambda: world)
    run(budget, sequences, 600, world)
    assert run(budget, sequences, 300, world) > 0.9 * best_fixed(0.9, world, 0.0, batch=8)


class Counting(Budget):
    """Counts its decisions."""

    decisions = 0

    def _decide(self, *args, **named):
        self.decisions += 1
        return super()._decide(*args, **named)


class Restless(Counting):
    """Decides anew before every pass, but where something is drafted."""

    def _stands(self):
        return not self._decided.is_plain and super()._stands()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("row_ms", [0.0, 0.02])
def test_where_nothing_was_drafted_the_decision_is_the_one_it_would_be_anew(row_ms, chance, batch):
    world, drafted = costs(2.0, draft_ms=1.0, row_ms=row_ms), []
    counting, restless = Counting(lambda: world), Restless(lambda: world)
    for budget in (counting, restless):
        sequences = [Simulated(chance, claimed=0.6, draft_ms=1.0, dice=random.Random(seed)) for seed in range(batch)]
        run(budget, sequences, 400, world)
        drafted.append([sequence.drafted for sequence in sequences])
    assert drafted[0] == drafted[1]
    assert counting.decisions <= restless.decisions
    assert counting.decisions < 130


def test_who_has_much_to_read_before_it_drafts_tries_it_less_often():
    tried = []
    for row_ms in (0.0, 0.02):
        world, sequence = costs(2.0, draft_ms=1.0, row_ms=row_ms), Simulated(0.0, claimed=0.6, draft_ms=1.0)
        budget = Budget(partial(replace, world))
        run(budget, [sequence], 1500, world)
        tried.append(sum(nodes > 0 for nodes in sequence.drafted[500:]))
    assert 0 < tried[1] < 0.8 * tried[0]


def test_passes_without_a_draft_fade_all_at_once_as_they_would_one_by_one():
    found = []
    for wakes in (False, True):
        outlook = Outlook([Size(nodes=nodes) for nodes in range(5)])
        outlook.learn(chain(4, 0.5), [0, 1], 4)
        for _ in range(30):
            outlook.learn(chain(0), [0], 0)
            if wakes:
                outlook._wake()
        outlook.learn(chain(2, 0.5), [0], 4)
        found.append((outlook.worth, [outlook.gain(nodes) for nodes in range(5)], outlook.calibration))
    assert found[0] == found[1]


def test_each_sequence_of_a_batch_drafts_what_its_own_drafting_pays_for():
    world = costs(0.05, draft_ms=3.0)
    budget = Budget(lambda: world)
    good, bad = Simulated(0.95, draft_ms=0.0), Simulated(0.05, draft_ms=3.0, method="eagle")
    run(budget, [good, bad], 300, world)
    assert np.mean(good.drafted[-100:]) > 5
    assert np.mean(bad.drafted[-100:]) < 0.5


def test_one_sequences_trouble_is_known_to_the_next():
    world = costs(2.0, draft_ms=3.0)
    budget = Budget(lambda: world)
    run(budget, [Simulated(0.0, draft_ms=3.0)], 300, world)
    later = Simulated(0.0, draft_ms=3.0, dice=random.Random(9))
    run(budget, [later], 60, world)
    assert sum(later.drafted[:20]) <= 4


def test_what_was_measured_is_not_unlearned_by_one_short_bad_answer():
    good = Worth(accepted=[0.6 * 0.8**place for place in range(8)], present=[0.99] * 8)
    world = replace(costs(2.0, draft_ms=1.5), worth={"ngram": good})
    budget = Budget(lambda: world)
    run(budget, [Simulated(0.0, draft_ms=1.5)], 8, world)
    later = Simulated(0.6, draft_ms=1.5)
    run(budget, [later], 10, world)
    assert np.mean(later.drafted) > 1
    run(budget, [Simulated(0.0, draft_ms=1.5)], 600, world)
    later = Simulated(0.0, draft_ms=1.5)
    run(budget, [later], 12, world)
    assert not any(later.drafted[6:])  # but by many: the next request is soon sure of it


def test_every_request_takes_what_is_known_nearer_to_what_was_measured():
    good = Worth(accepted=[0.6 * 0.8**place for place in range(8)], present=[0.99] * 8)
    world = replace(costs(2.0, draft_ms=1.5), worth={"ngram": good})
    budget, gains = Budget(lambda: world), []
    for _ in range(6):
        budget.allow([request := Simulated(0.6, draft_ms=1.5)], [64])
        assert request.outlook is not None
        gains.append(request.outlook.gain(8) / sum(good.accepted))
        if len(gains) == 1:
            for _ in range(1500):
                request.outlook.learn(chain(8), [0], 8)
    assert gains.pop(0) == pytest.approx(1)
    assert gains == sorted(gains)
    assert 0.25 <= gains[0] < 0.5
    assert gains[-1] > 0.7


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_an_outlook_goes_back_by_a_share(share):
    measured = Worth(accepted=[0.6, 0.3], present=[0.9, 0.8], calibration=0.5)
    outlook = Outlook([Size(nodes=nodes) for nodes in range(3)], measured)
    for _ in range(50):
        outlook.learn(chain(2, 0.5), [0], 2)
    before = outlook.worth
    outlook.go_back(measured, share)
    after = outlook.worth
    assert after.calibration == pytest.approx((1 - share) * before.calibration + share * 0.5)
    assert after.present == pytest.approx([1 - share * 0.1, 1 - share * 0.2], abs=0.02)
    assert outlook.gain(2) == pytest.approx(sum(after.accepted))
    if share in (0.0, 1.0):
        assert after.accepted == pytest.approx((measured if share else before).accepted)


def test_a_node_has_its_price_and_a_level_too():
    world = costs(0.5, draft_ms=1.0)
    world.draft["eagle2"] = DraftCost(pass_ms=3.0, fixed_ms=1.0, level_ms=2.0, node_ms=0.0)  # type: ignore[index]
    sequence = Simulated(0.5, most=1, method="eagle2")  # there is nothing larger to try
    [allowance] = Budget(lambda: world).allow([sequence], [64])
    rate = allowance.level_price / 2.0
    assert allowance.prices == pytest.approx([0.0, 0.5 * rate])
    assert 0.1 < rate < 0.2  # tokens per millisecond: between plain decoding's and all that could be accepted


@pytest.mark.parametrize(("chance", "lowest", "highest"), [(0.8, 0.8, 1.2), (0.2, 0.05, 0.35)])
def test_how_well_a_drafter_knows_its_chances_is_learned(chance, lowest, highest):
    world = costs(0.5)
    sequence = Simulated(chance, claimed=0.8, method="eagle")
    run(Budget(lambda: world), [sequence], 300, world)
    assert sequence.outlook is not None
    assert lowest < sequence.outlook.calibration < highest


@pytest.mark.parametrize("claimed", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 0.9])
def test_wrong_claims_do_not_make_it_slower_than_plain(chance, claimed):
    world = costs(1.0, draft_ms=1.5)
    ratios = []
    for seed in range(2):
        sequence = Simulated(chance, claimed=claimed, draft_ms=1.5, method="eagle", dice=random.Random(seed))
        ratios.append(run(Budget(lambda: world), [sequence], 300, world))
    assert np.mean(ratios) >= 0.96


@pytest.mark.parametrize(("accepted", "nodes"), [(0.05, 0), (0.9, 8)])
def test_what_was_worth_it_where_costs_were_measured_is_where_it_begins(accepted, nodes):
    world = replace(costs(1.0, draft_ms=0.5), worth={"ngram": Worth(accepted=[accepted] * 8, present=[1.0] * 8)})
    [allowance] = Budget(lambda: world).allow([Simulated(0.5)], [64])
    assert abs(allowance.nodes - nodes) <= 1


def test_larger_trees_than_the_measured_ones_are_expected_to_gain_ever_less():
    worth = Worth(accepted=[0.5, 0.4], present=[1.0, 0.5], calibration=0.9)
    assert worth.resized(2) == worth
    assert worth.resized(1) == Worth(accepted=[0.5], present=[1.0], calibration=0.9)
    larger = worth.resized(4)
    assert larger.accepted == pytest.approx([0.5, 0.4, 0.32, 0.256])
    assert larger.present == [1.0, 0.5, 1.0, 1.0]
    assert Worth(accepted=[], present=[]).resized(1).accepted == [0.0]


def test_those_who_have_a_size_of_their_own_keep_it():
    budget = Budget(costs)
    own, five, auto = (Simulated(0.5, budget=which) for which in ("fixed", 5, "auto"))
    first, second, third = budget.allow([own, five, auto], [1, 2, 3])
    assert first is UNLIMITED
    assert second.nodes == 4
    assert 0 <= third.nodes <= 8
    assert Budget().allow([own, five], [1, 2]) == [first, second]


@given(
    prompt=st.lists(st.integers(0, 7), min_size=1, max_size=20),
    per_node=st.sampled_from([0.01, 1.0, 20.0]),
    seed=st.one_of(st.none(), st.integers(0, 9)),
    budget=st.sampled_from(["auto", "auto", "fixed", 1, 2, 5]),
)
@settings(deadline=None, max_examples=15)
@pytest.mark.parametrize("method", METHODS)
def test_no_budget_changes_an_output(tmp_path_factory, method, prompt, per_node, seed, budget):
    sampling = Sampling() if seed is None else Sampling(temperature=1.0, top_p=0.9, seed=seed)
    with fake_engine(tmp_path_factory.getbasetemp(), MODEL, logits=MODEL.logits) as engine:
        engine._reception.costs = costs(per_node, draft_ms=1.0)
        plain = GenerationConfig(max_new_tokens=40, sampling=sampling, budget="fixed")
        sized = GenerationConfig(max_new_tokens=40, sampling=sampling, method=method, budget=budget)
        expected = engine.generate(prompt, plain)
        for result in engine.generate([prompt, prompt], sized):
            assert result.token_ids == expected.token_ids
            if isinstance(budget, int):
                assert result.stats.nodes <= budget * result.stats.passes


def test_auto_needs_costs_and_a_number_must_be_one(tmp_path):
    words = "budget auto needs to know what {} cost here: run `spec-trt profile"
    with fake_engine(tmp_path, MODEL) as engine, pytest.raises(ConfigError, match=words.format("passes")):
        engine.generate([1, 2], GenerationConfig(budget="auto"))
    with fake_engine(tmp_path, MODEL) as engine:
        engine._reception.costs = replace(costs(), draft={"ngram": DraftCost(pass_ms=0.1)})
        with pytest.raises(ConfigError, match=words.format("eagle's drafts")):
            engine.generate([1, 2], GenerationConfig(method="eagle", budget="auto"))
        for method in ("autoregressive", "ngram"):
            engine.generate([1, 2], GenerationConfig(method=method, budget="auto"))
    for bad in (0, -1, 2.5, "some"):
        with pytest.raises(ConfigError, match="budget must be auto, fixed or a number of nodes from 1 on: found"):
            GenerationConfig(budget=bad)  # type: ignore[arg-type]


def test_costs_that_cannot_be_read_are_for_who_asks_for_them(tmp_path):
    with fake_engine(tmp_path, MODEL) as engine:
        (engine.directory / COSTS_FILE).write_text("{}")
        engine._reception.prepare()
        assert engine.generate([1, 2], GenerationConfig(method="ngram")).token_ids
        with pytest.raises(ManifestError, match="can't be read"):
            engine.generate([1, 2], GenerationConfig(method="ngram", budget="auto"))
        costs(draft_ms=0.1).save(engine.directory)
        assert engine.generate([1, 2], GenerationConfig(method="ngram", budget="auto")).token_ids


def test_where_a_draft_changes_the_output_no_time_sizes_it(tmp_path):
    drawn = {"method": "eagle", "sampling": Sampling(temperature=1.0, draft_sampling=True, seed=3)}
    typical = {"method": "medusa", "sampling": Sampling(temperature=1.0, acceptance="typical", seed=3)}
    with fake_engine(tmp_path, MODEL, logits=MODEL.logits) as engine:
        fixed = [engine.generate([1, 2], GenerationConfig(**asked)).token_ids for asked in (drawn, typical)]  # type: ignore[arg-type]
        engine._reception.costs = costs(1.0)
        for asked, expected in zip((drawn, typical), fixed, strict=True):
            assert engine.generate([1, 2], GenerationConfig(**asked)).token_ids == expected  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="use budget fixed, or a number of nodes"):
                engine.generate([1, 2], GenerationConfig(budget="auto", **asked))  # type: ignore[arg-type]
