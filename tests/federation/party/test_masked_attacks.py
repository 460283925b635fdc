"""A masked Round 1 against a coordinator that tries to read one party's answer. Each test is one attack."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import pytest

pytest.importorskip("grpc")

from masked_federation import EPS, mask_keys, masked_parties, plan_of, privacy
from party_helpers import CLASSES, Federation, StubParty, connected, serving
from typer.testing import CliRunner

from gainroute.cli import app
from gainroute.errors import DataError, SettingError
from gainroute.federation.coordinator.masked import new_nonce
from gainroute.federation.masking import PairwiseMasks, create_mask_key, load_mask_key, log_odds, mask_context, total_of
from gainroute.federation.party.masked import MaskedRoundOne, MaskingRefusedError, SampleMemory
from gainroute.federation.party.settings import PrivacySettings
from gainroute.federation.transport.base import PartyRefusedError
from gainroute.federation.transport.masked import MISSING, WITHHELD
from gainroute.federation.transport.proto import party_pb2 as pb

IDS = [str(i) for i in range(8)]
EQUAL = dict.fromkeys("abcd", 0.25)
ROUNDING = 4 * 2**-17  # half a unit per party


def attack(folder, work, names="abcd", **how):
    async def run():
        async with masked_parties(folder, names, **how) as masked:
            await work(masked)

    asyncio.run(run())


def test_an_honest_sum_is_the_pool_and_its_parts_are_noise(tmp_path):
    weights = {"a": 0.5, "b": 0.3, "c": -0.2, "d": 0.4}

    async def work(masked):
        nonce = new_nonce()
        parts = [await masked.ask(name, IDS, weights, nonce=nonce, request_id="r") for name in weights]
        expected = sum(weight * masked.odds(name, IDS) for name, weight in weights.items())
        total = total_of([part[:, :-1] for part in parts])
        assert np.abs(total - expected).max() <= ROUNDING
        assert not np.concatenate([part[:, -1] for part in parts]).any()
        for left_out in range(4):  # any three of four
            some = total_of([part[:, :-1] for i, part in enumerate(parts) if i != left_out])
            assert (np.abs(some) > 100).mean() > 0.9

    attack(tmp_path, work)


def test_two_parties_and_two_classes_send_one_number_so_that_neither_can_be_solved_for():
    # The sums of both log-posteriors are two equations for two unknowns, p and q:
    p, q = 0.9, 0.3
    product, rest = np.exp(np.log(p) + np.log(q)), np.exp(np.log(1 - p) + np.log(1 - q))
    assert np.allclose(sorted(np.roots([1, -(1 + product - rest), product])), [q, p])
    # One sum of log-odds is the same for a whole family of pairs.
    shift = 0.7
    other = [1 / (1 + np.exp(-(np.log(x / (1 - x)) + s))) for x, s in ((p, shift), (q, -shift))]
    both = [
        total_of([log_odds(np.array([[x, 1 - x]], np.float32), 0.5, EPS) for x in pair]) for pair in ((p, q), other)
    ]
    assert both[0].shape == (1, 1)
    assert np.abs(both[0] - both[1]).max() <= 1e-4


def test_two_parties_are_refused_unless_a_party_allows_it(tmp_path):
    async def refused(masked):
        assert "2 parties; 3 or more are needed" in await masked.refusal("a", IDS, {"a": 0.5, "b": 0.5})

    attack(tmp_path / "default", refused, "ab")

    async def allowed(masked):
        total, blank = await masked.sum_of(IDS, {"a": 0.5, "b": 0.5})
        assert not blank.any()
        assert np.abs(total - (masked.odds("a", IDS) + masked.odds("b", IDS)) / 2).max() <= ROUNDING

    attack(tmp_path / "allowed", allowed, "ab", min_roster=2)


def test_a_second_weight_for_a_sample_is_withheld(tmp_path):
    # Two sums with different weights of two parties are two equations for two unknowns.
    first, second = {"a": 0.5, "b": 0.5}, {"a": 0.6, "b": 0.4}

    async def work(masked):
        one, _ = await masked.sum_of(IDS, first)
        two, blank = await masked.sum_of(IDS, second)
        assert blank.all()
        solved = (two - 0.4 / 0.5 * one) / (0.6 - 0.4)
        assert (np.abs(solved - masked.odds("a", IDS)) > 10).mean() > 0.9
        again, blank = await masked.sum_of(IDS, first)  # the same sum says nothing new
        assert not blank.any()
        assert np.abs(again - one).max() <= ROUNDING
        fresh = [str(i) for i in range(8, 12)]
        values, blank = await masked.sum_of([*IDS[:2], *fresh], second)  # only what was in another sum is withheld
        assert blank.tolist() == [True, True, False, False, False, False]
        expected = 0.6 * masked.odds("a", fresh) + 0.4 * masked.odds("b", fresh)
        assert np.abs(values[2:] - expected).max() <= ROUNDING

    attack(tmp_path, work, "ab", min_roster=2)


def test_a_roster_without_one_party_is_withheld_after_the_whole_one(tmp_path):
    async def work(masked):
        everyone, _ = await masked.sum_of(IDS, EQUAL)
        without, blank = await masked.sum_of(IDS, dict.fromkeys("abc", 0.25))
        assert blank.all()
        assert (np.abs((everyone - without) * 4 - masked.odds("d", IDS)) > 10).mean() > 0.9
        lines = [json.loads(line) for line in (tmp_path / "party-a" / "audit.jsonl").read_text().splitlines()]
        assert [line.get("withheld") for line in lines if line["round"] == 1] == [None, len(IDS)]
        # The other way round it is withheld as well.
        others = [str(i) for i in range(20, 24)]
        await masked.sum_of(others, dict.fromkeys("abc", 0.25))
        assert (await masked.ask("a", others, EQUAL))[:, -1].tolist() == [WITHHELD] * 4

    attack(tmp_path, work)


def test_another_model_version_does_not_open_a_second_sum(tmp_path):
    # Versions answer alike: the difference of S with m1 and S without d with m2 would be close to the answer of d.
    async def work(masked):
        await masked.sum_of(IDS, EQUAL)
        models = dict.fromkeys("abc", "m2")
        part = await masked.ask("a", IDS, dict.fromkeys("abc", 0.25), model="m2", models=models)
        assert (part[:, -1] == WITHHELD).all()

    attack(tmp_path, work, models=("m1", "m2"))


def test_parties_that_the_coordinator_invents_are_refused(tmp_path):
    async def work(masked):
        ghosts = {"a": 0.3, "ghost": 0.3, "shade": 0.3}
        message = await masked.refusal("a", IDS, ghosts)
        assert "'ghost'" in message
        assert "privacy.peers" in message
        twice = plan_of(EQUAL) + plan_of({"b": 0.25})  # a serialised list may be continued
        assert "repeats a party" in await masked.refusal("a", IDS, EQUAL, plan=twice)
        assert "does not name this one" in await masked.refusal("a", IDS, dict.fromkeys("bcd", 0.3))

    attack(tmp_path, work)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}, "fewer than 3 parties with 5% or more of the weight"),
        ({"a": 0.5, "b": 0.5, "c": 1e-6, "d": 1e-6}, "fewer than 3 parties with 5% or more of the weight"),
        ({"a": 9.0, "b": 0.6, "c": 0.6, "d": 0.6}, "83% of the weight on 'a'; at most 80%"),
        ({"a": 2e3, "b": 1e3, "c": 1e3, "d": 1e3}, "must stay below 32768"),
        ({"a": np.nan, "b": 0.6, "c": 0.6, "d": 0.6}, "not usable"),
    ],
)
def test_weights_that_single_out_a_party_are_refused(tmp_path, weights, message):
    async def work(masked):
        assert message in await masked.refusal("b", IDS, weights)

    attack(tmp_path, work)


def test_parties_that_are_given_different_weights_mask_differently(tmp_path):
    # Each party sees weights that it accepts, but those of the others are not what they are given.
    async def work(masked):
        nonce = new_nonce()
        small = {"a": 0.25, "b": 0.24, "c": 0.24, "d": 0.24}
        parts = [await masked.ask("a", IDS, EQUAL, nonce=nonce, request_id="r")]
        parts += [await masked.ask(name, IDS, small, nonce=nonce, request_id="r") for name in "bcd"]
        assert (np.abs(total_of([part[:, :-1] for part in parts])) > 100).mean() > 0.9

    attack(tmp_path, work)


def test_a_sample_that_only_one_party_has_gives_noise(tmp_path):
    async def run():
        federation, public = Federation(tmp_path), mask_keys(tmp_path, "abc")
        everything, nothing = StubParty(), StubParty(seed=1)
        nothing.ids = [40]
        nonce, parts = new_nonce(), []
        for name in "abc":
            settings = federation.settings(name, privacy=privacy(tmp_path, name, public))
            async with (
                serving(settings, everything if name == "a" else nothing) as node,
                connected(federation, node, name) as connection,
            ):
                plan = plan_of(dict.fromkeys("abc", 0.25))
                parts.append((await connection.masked(IDS, model="m1", plan=plan, nonce=nonce, request_id="r")).values)
        total = total_of([part[:, :-1] for part in parts])
        logs = np.log(everything.p[:8].astype(np.float64) + EPS)
        assert [part[0, -1] for part in parts] == [0, MISSING, MISSING]
        assert (np.abs(total * 4 - (logs[:, :-1] - logs[:, -1:])) > 10).mean() > 0.9

    asyncio.run(run())


def test_a_mask_is_never_used_for_two_samples(tmp_path):
    # Two messages under one mask give away the difference of two answers of the same party.
    async def work(masked):
        nonce = new_nonce()
        one = await masked.ask("a", IDS[:1], EQUAL, nonce=nonce, request_id="r")
        assert "nonce was used before" in await masked.refusal("a", IDS[1:2], EQUAL, nonce=nonce, request_id="r")
        # Even a party that has restarted, and forgotten the nonce, masks other ids differently.
        masks = PairwiseMasks("a", load_mask_key(tmp_path / "a.mask.key"), {"b": b"\x09" + bytes(31)})
        blank = np.zeros((1, 2), np.uint32)
        streams = {
            masks.add_to(blank, ("a", "b"), mask_context(*parts)).tobytes()
            for parts in (
                (b"p", b"n", "main", "r", ["1", "2"]),
                (b"p", b"n", "main", "r", ["12"]),
                (b"p", b"n", "main", "r", ["2", "1"]),
                (b"p", b"n", "main", "s", ["1", "2"]),
                (b"p", b"n", "other", "r", ["1", "2"]),
                (b"p", b"o", "main", "r", ["1", "2"]),
                (b"q", b"n", "main", "r", ["1", "2"]),
            )
        }
        assert len(streams) == 7
        assert one.shape == (1, len(CLASSES))

    attack(tmp_path, work)


def test_an_old_nonce_cannot_be_used_again_once_it_is_forgotten(tmp_path):
    public = mask_keys(tmp_path, "abc")
    now = time.time()
    party = MaskedRoundOne("a", privacy(tmp_path, "a", public), clock=lambda: now)
    for shift, message in ((-301, "301 s old"), (301, "-301 s old")):
        nonce = int((now + shift) * 1e6).to_bytes(8, "little") + bytes(16)
        plan = plan_of(dict.fromkeys("abc", 0.3))
        request = pb.Request(model="m1", ids=["1"], mask_plan=plan, mask_nonce=nonce)
        with pytest.raises(MaskingRefusedError, match=message):
            party.admit("main", request)
    for nonce in (b"", b"short"):
        with pytest.raises(MaskingRefusedError, match="24 are needed"):
            party.admit("main", pb.Request(model="m1", ids=["1"], mask_plan=plan, mask_nonce=nonce))


def test_a_masking_party_gives_no_posterior_in_any_other_way(tmp_path):
    async def work(masked):
        with pytest.raises(PartyRefusedError, match="masked only"):
            await masked.connections["a"].posteriors(IDS, model="m1", request_id="r")
        assert "cannot be decoded" in await masked.refusal("a", IDS, EQUAL, plan=b"\xff\xff")
        assert "not the one requested" in await masked.refusal("a", IDS, EQUAL, models={"a": "m7"})
        assert (await masked.connections["a"].embeddings(IDS, model="m1", codec="float32", request_id="r")).values.any()

    attack(tmp_path, work)


def test_a_plain_party_does_not_answer_a_masked_request(tmp_path):
    async def run():
        federation = Federation(tmp_path)
        async with (
            serving(federation.settings("a"), StubParty()) as node,
            connected(federation, node) as connection,
        ):
            with pytest.raises(PartyRefusedError, match="does not mask Round 1"):
                await connection.masked(IDS, model="m1", plan=plan_of(EQUAL), nonce=new_nonce(), request_id="r")

    asyncio.run(run())


# ---- the memory -------------------------------------------------------------------------------------


def test_a_sample_is_remembered_for_at_least_a_window_and_memory_is_bounded():
    now = [0.0]
    memory = SampleMemory(10.0, 8, lambda: now[0])
    assert memory.take(b"S", b"1", ["x", "y"]) == []
    now[0] = 9.9
    assert memory.take(b"T", b"2", ["y", "z"]) == [0]
    now[0] = 10.5  # between one and two windows: still known
    assert memory.take(b"T", b"3", ["x"]) == [0]
    assert memory.take(b"S", b"4", ["x"]) == []
    with pytest.raises(MaskingRefusedError, match="remembers 8 samples, and 8 at most") as caught:
        memory.take(b"S", b"5", ["u", "v"])
    assert caught.value.retry_after == pytest.approx(10)
    now[0] = 40.0
    assert memory.take(b"T", b"1", ["x", "y", "z"]) == []


def test_a_coordinator_cannot_flood_the_memory_to_make_a_party_forget(tmp_path):
    async def work(masked):
        await masked.sum_of(["1", "2"], EQUAL)
        with pytest.raises(Exception, match=r"privacy\.remember"):
            await masked.sum_of([str(i) for i in range(10, 20)], EQUAL)
        assert (await masked.ask("a", ["1"], dict.fromkeys("abc", 0.3)))[0, -1] == WITHHELD

    attack(tmp_path, work, remember=8)


# ---- keys -------------------------------------------------------------------------------------------


def test_keys_are_private_kept_and_distinct(tmp_path):
    public = mask_keys(tmp_path, "ab")
    assert (tmp_path / "a.mask.key").stat().st_mode & 0o077 == 0
    with pytest.raises(SettingError, match="peers may have pinned"):
        create_mask_key(tmp_path / "a.mask.key")
    for peers in ({"b": public["b"], "c": public["b"]}, {"b": public["a"]}):
        settings = PrivacySettings(round1="masked", key=tmp_path / "a.mask.key", peers=peers)
        with pytest.raises(SettingError, match="occurs twice, or is the party's own"):
            MaskedRoundOne("a", settings)
    for text, message in (("nonsense", "44 characters"), ("A" * 43 + "=", "not a valid X25519 key")):
        settings = PrivacySettings(round1="masked", key=tmp_path / "a.mask.key", peers={"b": text})
        with pytest.raises(SettingError, match=message):
            MaskedRoundOne("a", settings)
    shown = CliRunner().invoke(app, ["certs", "mask-key", "--out", str(tmp_path / "a.mask.key")])
    assert public["a"] in shown.output
    made = CliRunner().invoke(app, ["certs", "mask-key", "--out", str(tmp_path / "new.key")])
    assert made.output.splitlines()[1].split()[0] not in public.values()
    load_mask_key(tmp_path / "new.key")
    (tmp_path / "wrong").write_text("no key")
    with pytest.raises(DataError, match="certs mask-key"):
        load_mask_key(tmp_path / "wrong")
    for wrong in ({"round1": "masked"}, {"min_roster": 1}, {"max_weight_share": 0.0}, {"window_seconds": 0.0}):
        with pytest.raises(SettingError, match="privacy"):
            PrivacySettings(**wrong)
