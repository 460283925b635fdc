"""One budget for several coordinators: whoever joins, leaves or is killed, the sum of their streams is bounded."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import world

import gainroute as gr
from gainroute.control.budget import BudgetController
from gainroute.control.token_bucket import TokenBucket
from gainroute.federation.coordinator.settings import CapSettings

FITTED = world(400, 2, 4)
ROUTER = gr.ExpectedGainRouter(0.2).fit(FITTED.local, FITTED.labels, FITTED.strong)
TEMPLATE = ROUTER.route(FITTED.local[:, :60])
PER_SAMPLE = ("escalate", "weak_prediction", "pooled", "calibrated", "incomplete")
SLOTS = 3


class Coordinators:
    """As the service does it: a coordinator takes the first free slot and its saved state, which a commit saves."""

    def __init__(self, budget, step):
        self.make = lambda: BudgetController(ROUTER, budget, step=step, explore=min(0.01, budget))
        self.saved, self.running, self.pending = {}, {}, {}
        self.samples = self.escalated = self.lost = 0

    def join(self):
        free = [slot for slot in range(SLOTS) if slot not in self.running]
        if free:
            controller = self.running[free[0]] = self.make()
            self.pending[free[0]] = []
            if free[0] in self.saved:
                controller.restore(self.saved[free[0]])

    def decide(self, slot, scores):
        first = {name: getattr(TEMPLATE, name)[: len(scores)] for name in PER_SAMPLE}
        rows = dataclasses.replace(TEMPLATE, **first, local=TEMPLATE.local[:, : len(scores)], score=np.array(scores))
        self.pending[slot].append(self.running[slot].decide(rows).escalate)

    def commit(self, slot):
        """The oldest batch is answered; the state is saved as it is now, with what was decided since."""
        if self.pending[slot]:
            answered = self.pending[slot].pop(0)
            self.samples += len(answered)
            self.escalated += int(answered.sum())
            self.saved[slot] = self.running[slot].state()

    def leave(self, slot):
        while self.pending[slot]:
            self.commit(slot)
        del self.running[slot], self.pending[slot]

    def kill(self, slot):
        self.lost += sum(map(len, self.pending.pop(slot)))
        del self.running[slot]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "kill", "commit", "commit", "decide", "decide", "decide"]),
        st.integers(0, SLOTS - 1),
        st.lists(st.one_of(st.floats(-1, 1), st.just(9.0)), min_size=1, max_size=60),
    ),
    min_size=1,
    max_size=80,
)


@settings(max_examples=30)
@given(events=EVENTS, budget=st.sampled_from([0.05, 0.2, 0.6]), step=st.sampled_from([None, 0.1, 1.0]))
def test_the_sum_is_bounded_however_samples_are_split_and_whoever_is_killed(events, budget, step):
    world_ = Coordinators(budget, step)
    world_.join()
    for action, number, scores in events:
        if action == "join" or not world_.running:
            world_.join()
            continue
        slot = sorted(world_.running)[number % len(world_.running)]
        world_.decide(slot, scores) if action == "decide" else getattr(world_, action)(slot)
        eta = world_.make().step
        bound = SLOTS * (1 + eta) / eta + world_.lost
        assert abs(world_.escalated - budget * world_.samples) <= bound + 1e-6


@settings(max_examples=30)
@given(
    per=st.sampled_from(["second", "sample"]),
    coordinators=st.integers(1, 5),
    asked=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 30), st.floats(0, 3)), min_size=1, max_size=60),
)
def test_equal_shares_keep_the_cap_over_every_stretch(per, coordinators, asked):
    cap, now = CapSettings(rate=2.0 if per == "second" else 0.25, burst=20.0, per=per), [0.0]
    share = cap.share(coordinators)
    buckets = [TokenBucket(share.rate, share.burst, per=share.per, clock=lambda: now[0]) for _ in range(coordinators)]
    spent, clock = [0], [0.0]
    for who, samples, seconds in asked:
        now[0] += seconds
        bucket = buckets[who % coordinators]
        bucket.refill()
        spent.append(spent[-1] + sum(bucket.take() for _ in range(samples)))
        clock.append(now[0] if per == "second" else clock[-1] + samples)
    # What was spent in steps i+1 … j, which lie between the clocks of i and j; a step that spends is part of it.
    for i, j in itertools.combinations(range(len(spent)), 2):
        begin = clock[i] if per == "sample" else clock[i + 1]
        assert spent[j] - spent[i] <= cap.burst + cap.rate * (clock[j] - begin) + 1e-6
