"""Private set intersection: it equals plain set intersection, reveals no id, and refuses what it cannot use."""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from contextlib import suppress
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gainroute.errors import DataError, GainrouteError, InputError, SettingError
from gainroute.federation.formation.alignment import PSEUDONYM, PartyAlignment, intersect, passes
from gainroute.federation.formation.groups import P256
from gainroute.federation.formation.pseudonyms import comparable_ids

SECRET = b"the coordinator's own secret...."
KEYS = [bytes(31) + bytes([n]) for n in range(2, 7)]
ONE = bytes(31) + b"\x01"  # blinding with 1 is the public hash to the group
P = 2**256 - 2**224 + 2**192 + 2**96 - 1  # the field of P-256


def views(ids):
    return np.zeros((len(ids), 2))


def aligning(held, keys=KEYS, **options):
    return {
        name: PartyAlignment(ids, key, parties=len(held), **options)
        for (name, ids), key in zip(held.items(), keys, strict=False)
    }


def relay(parties, chunk=3):
    """Pass all lists through all parties, in chunks; also returns what the coordinator sees, and masked by whom."""
    first, *others = passes(list(parties))
    lists = {
        name: b"".join(parties[name].own(at, chunk) for at in range(0, len(parties[name]), chunk)) for name in first
    }
    masked_by = {name: {name} for name in first}
    seen = [({name}, data) for name, data in lists.items()]
    for step in others:
        for worker, owner in step.items():
            data = lists[owner]
            pieces = [data[at : at + 32 * chunk] for at in range(0, len(data), 32 * chunk)]
            lists[owner] = b"".join(map(parties[worker].mask, pieces))
            masked_by[owner] = masked_by[owner] | {worker}
            seen.append((masked_by[owner], lists[owner]))
    return lists, seen


def align(held, **options):
    parties = aligning(held, **options)
    lists, _ = relay(parties)
    found = intersect(lists, SECRET)
    return found, {name: party.commit(found.pseudonyms[name], views(held[name])) for name, party in parties.items()}


def usable(text):
    try:
        return bool(comparable_ids([text]))
    except InputError:
        return False


TEXTS = st.text(min_size=1, max_size=6).filter(usable)
IDS = st.one_of(st.integers(-5, 12), st.integers(), st.sampled_from(["7", "007", "Zoë", "Zoe\u0308", "李", "x"]), TEXTS)


@st.composite
def id_sets(draw):
    """The ids of 2 to 5 parties: some of one pool each, whole numbers as numbers or as texts."""
    pool = draw(st.lists(IDS, min_size=1, max_size=6, unique_by=lambda value: comparable_ids([value])[0]))
    held = {}
    for n in range(draw(st.integers(2, 5))):
        drawn = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=6, unique=True))
        held[f"party{n}"] = [str(value) if draw(st.booleans()) else value for value in drawn]
    return held


@settings(max_examples=40, deadline=None)
@given(id_sets())
def test_the_result_is_the_intersection_of_the_id_sets(held):
    plain = {name: set(comparable_ids(ids)) for name, ids in held.items()}
    common = set.intersection(*plain.values())
    if not common:
        with pytest.raises(DataError, match="no sample is held by all parties"):
            align(held)
        return
    found, tables = align(held)
    assert len(found.samples) == len(common)
    assert all(PSEUDONYM.fullmatch(name) for name in found.samples)
    real = [comparable_ids(table.ids) for table in tables.values()]
    assert set(real[0]) == common
    assert all(ids == real[0] for ids in real), "the same sample is in the same row at every party"
    assert all(table.pseudonyms == found.samples for table in tables.values())
    for size in (1, 2, len(held)) if len(held) > 4 else range(1, len(held) + 1):
        for members in combinations(held, size):
            assert found.overlaps[members] == len(set.intersection(*(plain[name] for name in members)))


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)), st.permutations(["a", "b", "c"]))
def test_neither_the_order_of_the_ids_nor_that_of_the_parties_matters(order, names):
    held = {"a": [0, 1, 2, 3, 4, 5], "b": [2, 3, 4, 5, 6, 7], "c": [3, 5, 7, 9]}
    keys = dict(zip(held, KEYS, strict=False))
    expected, _ = align(held)
    moved = {name: [held[name][place] for place in order if place < len(held[name])] for name in names}
    found, _ = align(moved, keys=[keys[name] for name in names])
    assert found.samples == expected.samples
    assert dict(found.pseudonyms) == dict(expected.pseudonyms)


def test_the_order_a_party_sends_in_depends_on_its_key():
    ids = list(range(40))
    by_key = []
    for key in KEYS[:2]:
        party = PartyAlignment(ids, key, parties=2)
        hashed = {P256.blind(key, [str(value)]): value for value in ids}
        by_key.append([hashed[element] for element in P256.split(party.own(0, 40))])
    assert sorted(by_key[0]) == sorted(by_key[1]) == ids
    assert len({tuple(ids), *map(tuple, by_key)}) == 3


def test_a_restarted_party_repeats_its_tags_and_keeps_the_pseudonyms_of_old_samples():
    held = {"a": ["x", "y", "z"], "b": ["y", "z", "w"]}
    before, _ = align(held)
    again, _ = align(held)
    assert again == before
    grown, _ = align({"a": ["new", *held["a"]], "b": ["w", "new", "y", "z"]})
    assert set(before.samples) < set(grown.samples)
    other_secret = intersect(relay(aligning(held))[0], SECRET[::-1])
    assert not set(before.samples) & set(other_secret.samples)


# ---- what is revealed ---------------------------------------------------------------------------------------------


def test_all_keys_but_one_do_not_match_tags_to_a_dictionary_of_ids():
    """The attacker sees everything, knows every id that exists, and has the keys of all parties but the first."""
    keys = dict(zip("abc", (P256.new_key() for _ in range(3)), strict=True))
    _, seen = relay(aligning({"a": range(12), "b": range(5, 17), "c": range(9, 21)}, keys=keys.values()))

    def computable(known):
        found = {P256.blind(ONE, map(str, range(30)))}
        for key in known:
            found |= {P256.mask(key, elements) for elements in found}
        return {element for elements in found for element in P256.split(elements)}

    without_a, with_a = computable([keys["b"], keys["c"]]), computable(keys.values())
    assert any(masked_by == {*"abc"} for masked_by, _ in seen)
    for masked_by, data in seen:
        elements = set(P256.split(data))
        assert not (elements & without_a if "a" in masked_by else elements - without_a)
        assert elements <= with_a, "the attack works as soon as the last key is known"


def test_what_the_coordinator_sees_contains_no_id_and_no_hash_of_one():
    held = {"a": ["patient-000017", "patient-000018"], "b": ["patient-000018", "patient-000019"]}
    lists, seen = relay(aligning(held, keys=[P256.new_key(), P256.new_key()]))
    found = intersect(lists, SECRET)
    view = b"".join(data for _, data in seen) + repr(found).encode()
    for ids in held.values():
        for sample in ids:
            assert sample.encode() not in view
            assert hashlib.sha256(sample.encode()).digest() not in view
            assert P256.blind(ONE, [sample]) not in view


def test_no_party_receives_two_lists_masked_with_the_same_keys():
    for m in range(2, 6):
        parties = [f"p{n}" for n in range(m)]
        received = {name: set() for name in parties}
        masked_by = {name: frozenset() for name in parties}
        for step in passes(parties):
            assert sorted(step) == sorted(step.values()) == parties, "everyone works, each on another list"
            for worker, owner in step.items():
                assert masked_by[owner] not in received[worker] or not masked_by[owner]
                received[worker].add(masked_by[owner])
            for worker, owner in step.items():
                masked_by[owner] |= {worker}
        assert set(masked_by.values()) == {frozenset(parties)}


# ---- ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([7], ["7"]),
        (np.array([7, 8]), [b"8", b"9"]),
        (np.array(["Zoë"]), [unicodedata.normalize("NFD", "Zoë")]),
        (["Zoë".encode()], ["Zoë"]),
        ([2**70], [str(2**70)]),
    ],
)
def test_the_same_id_in_another_encoding_matches(ours, theirs):
    assert len(align({"a": ours, "b": theirs})[0].samples) == 1


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (" 7", "spaces around it"),
        ("", "is empty"),
        ("7\u200b", "invisible"),
        ("\ufeff7", "invisible"),
        ("Zo\udceb", "undecodable"),
        ("Z\ufffd", "undecodable"),
        ("7\n", "spaces around it"),
        ("x" * 257, "longer than 256 characters"),
        ("Zoë".encode("latin-1"), "not UTF-8"),
        (7.0, "of type float"),
        (True, "of type bool"),
        (None, "of type NoneType"),
    ],
)
def test_an_id_that_could_miss_its_match_is_refused(sample, said):
    with pytest.raises(InputError, match=said):
        PartyAlignment(["fine", sample], KEYS[0], parties=2)


@pytest.mark.parametrize("ids", [[1, 2, "1"], ["Zoë", "x", unicodedata.normalize("NFD", "Zoë")], [b"x", "y", "x"]])
def test_a_repeated_id_is_refused_and_named(ids):
    with pytest.raises(DataError, match=rf"id '{comparable_ids(ids)[2]}' occurs more than once"):
        PartyAlignment(ids, KEYS[0], parties=2)


# ---- what is refused ----------------------------------------------------------------------------------------------


GOOD = P256.blind(KEYS[0], ["x", "y", "z"])


def off_curve():
    """An x-coordinate that no point of P-256 has."""
    b = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
    return next(x for x in range(1, 99) if pow(x**3 - 3 * x + b, (P - 1) // 2, P) == P - 1).to_bytes(32, "big")


BAD = [
    (GOOD[:-1], "95 bytes are not whole elements of 32 bytes"),
    (GOOD[:32] + off_curve() + GOOD[64:], "element 1 is not a point of P-256"),
    (GOOD[:64] + P.to_bytes(32, "big"), "element 2 is not a point of P-256"),  # 0 in another encoding
    (b"\xff" * 32 + GOOD, "element 0 is not a point of P-256"),
    (GOOD + GOOD[32:64], "elements 1 and 3 are equal"),
]


@pytest.mark.parametrize(("data", "said"), BAD)
def test_a_party_refuses_elements_it_cannot_use(data, said):
    party = PartyAlignment(["x"], KEYS[1], parties=2)
    with pytest.raises(InputError, match=said):
        party.mask(data)


@pytest.mark.parametrize(("data", "said"), BAD)
def test_the_coordinator_names_the_party_whose_tags_it_cannot_use(data, said):
    with pytest.raises(InputError, match=f"party 'b': {said}"):
        intersect({"a": GOOD, "b": data}, SECRET)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=100))
def test_garbage_raises_only_our_errors(data):
    party = PartyAlignment(["x"], KEYS[1], parties=2)
    with suppress(GainrouteError):
        assert len(party.mask(data)) == len(data)
    with pytest.raises(GainrouteError):
        intersect({"a": GOOD, "b": data}, SECRET)


def test_zero_is_a_point_and_is_masked_like_any_other():
    assert P256.split(bytes(32)) == [bytes(32)]
    assert P256.mask(KEYS[0], P256.mask(KEYS[1], bytes(32))) == P256.mask(KEYS[1], P256.mask(KEYS[0], bytes(32)))


@pytest.mark.parametrize(
    ("tags", "secret", "error", "said"),
    [
        ({"a": GOOD}, SECRET, SettingError, "at least 2 parties"),
        ({"a": GOOD, "b": GOOD}, b"short", SettingError, "16 bytes are needed"),
        ({"a": GOOD, "b": b""}, SECRET, InputError, "party 'b' sent 0 bytes"),
        ({"a": GOOD, "b": P256.blind(KEYS[1], ["x"])}, SECRET, DataError, r"a: 3; b: 1; a ∩ b: 0.*leading zeros"),
    ],
)
def test_what_the_coordinator_cannot_align_is_an_error(tags, secret, error, said):
    with pytest.raises(error, match=said):
        intersect(tags, secret)


def test_set_sizes_are_capped():
    with pytest.raises(DataError, match="has 4 ids; an alignment takes 1 to max_ids = 3"):
        PartyAlignment(range(4), KEYS[0], parties=2, max_ids=3)
    with pytest.raises(DataError, match="has 0 ids"):
        PartyAlignment([], KEYS[0], parties=2)
    party = PartyAlignment([1], KEYS[1], parties=3, max_ids=3)
    with pytest.raises(InputError, match="7 elements to mask, and 6 are left"):
        party.mask(P256.blind(KEYS[0], "abcdefg"))
    party.mask(GOOD)
    party.mask(GOOD)
    with pytest.raises(InputError, match="1 elements to mask, and 0 are left"):
        party.mask(GOOD[:32])
    with pytest.raises(InputError, match="party 'b' sent 96 bytes; 1 to max_ids = 2"):
        intersect({"a": GOOD[:64], "b": GOOD}, SECRET, max_ids=2)


def test_set_sizes_are_logged_and_ids_are_not(caplog):
    caplog.set_level(logging.INFO, "gainroute.federation")
    align({"a": ["secret-1", "secret-2"], "b": ["secret-2", "secret-3", "secret-4"]})
    assert "alignment: 2 ids of this party" in caplog.text
    assert "alignment: masked 3 elements" in caplog.text
    assert any("a ∩ b: 1" in getattr(entry, "overlaps", "") for entry in caplog.records)
    assert "secret" not in caplog.text


def test_positions_outside_the_list_are_empty_or_refused():
    party = PartyAlignment(range(3), KEYS[0], parties=2)
    assert len(party.own(2, 10)) == 32
    assert party.own(3, 1) == b""
    with pytest.raises(InputError, match="from -1"):
        party.own(-1, 2)


def test_a_group_of_one_is_no_alignment():
    for parties in ([], ["a"], ["a", "a"]):
        with pytest.raises(SettingError, match="two or more different parties"):
            passes(parties)


def test_a_damaged_key_is_refused():
    for key in (bytes(32), b"\xff" * 32):
        with pytest.raises(DataError, match="not a key of P-256"):
            PartyAlignment(["x"], key, parties=2).own(0, 1)


NAME, OTHER = "0" * 32, "1" * 32


@pytest.mark.parametrize(
    ("pseudonyms", "said"),
    [
        ([NAME], "1 pseudonyms for 3 ids"),
        ([NAME, NAME, None], "none twice"),
        ([None, None, None], "at least one is needed"),
        ([NAME, "patient-17", None], "'patient-17' is not a pseudonym"),
        ([NAME, OTHER.upper().replace("1", "A"), None], "is not a pseudonym"),
        ([NAME, 7, None], "7 is not a pseudonym"),
    ],
)
def test_a_party_commits_only_pseudonyms_that_fit_its_ids(pseudonyms, said):
    party = PartyAlignment(["x", "y", "z"], KEYS[0], parties=2)
    with pytest.raises(InputError, match=said):
        party.commit(pseudonyms, views("xyz"))
