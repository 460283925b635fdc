"""Private set intersection over the ids of two or more parties, without the transport.

Every party blinds its ids with a key of its own, in a secret order. The coordinator relays each list through all other
parties (`passes`), each of which masks it with its key. The results, one list of tags per party, are equal for equal
ids: `intersect` compares them and gives every common sample a pseudonym. See docs/privacy.md for who learns what.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gainroute.errors import DataError, InputError, SettingError
from gainroute.federation.formation.groups import P256, BlindingGroup
from gainroute.federation.formation.pseudonyms import PseudonymTable, comparable_ids, fingerprint
from gainroute.io.ids import id_texts, rows_by_id
from gainroute.io.preprocess import Raw

__all__ = ["Alignment", "PartyAlignment", "intersect", "passes"]

log = logging.getLogger("gainroute.federation")
PSEUDONYM = re.compile("[0-9a-f]{32}")


def passes(parties: Sequence[str]) -> list[dict[str, str]]:
    """Whose list each party works on in each of the M passes: its own first, then those of the parties before it.

    The passes form a ring, so that all parties work at the same time, each on another list. No party ever receives two
    lists that were masked with the same keys, so it cannot compare them. A list keeps its length and order in a pass.

    Examples
    --------
    >>> passes(["a", "b", "c"])
    [{'a': 'a', 'b': 'b', 'c': 'c'}, {'a': 'c', 'b': 'a', 'c': 'b'}, {'a': 'b', 'b': 'c', 'c': 'a'}]
    """
    if len(parties) < 2 or len(set(parties)) < len(parties):
        raise SettingError(f"parties {', '.join(parties) or 'none'}: an alignment needs two or more different parties")
    return [{party: parties[place - step] for place, party in enumerate(parties)} for step in range(len(parties))]


class PartyAlignment:
    """A party's side of one alignment. The tags depend on the ids and the key only: a restarted party repeats them.

    Parameters
    ----------
    ids
        N texts or whole numbers, all different. They never leave this object except by `commit`; error messages of the
        constructor may contain one.
    key
        The party's secret, kept in a file by `kept_secret`.
    parties
        M, the number of parties that align. Limits what is masked for the others to (M − 1) · `max_ids` elements.
    max_ids
        Maximum number of ids of one party.
    group
        Where ids are blinded.
    """

    def __init__(
        self, ids: Sequence[Any], key: bytes, *, parties: int, max_ids: int = 1_000_000, group: BlindingGroup = P256
    ) -> None:
        if not 0 < len(ids) <= max_ids:
            raise DataError(f"this party has {len(ids):,} ids; an alignment takes 1 to max_ids = {max_ids:,}")
        texts, compared = id_texts(ids), comparable_ids(ids)
        rows_by_id(compared, "alignment")
        # Sorting by a keyed hash is a secret permutation that depends neither on a seed nor on the order of the data.
        ranks = [hmac.digest(key, b"gainroute order\0" + text.encode(), "sha256") for text in compared]
        self._rows = sorted(range(len(texts)), key=ranks.__getitem__)
        self._ids, self._compared = texts, compared
        self._key, self._group = key, group
        self._max_ids, self._may_mask = max_ids, (parties - 1) * max_ids
        log.info("alignment: %d ids of this party", len(ids), extra={"ids": len(ids), "max_ids": max_ids})

    def __len__(self) -> int:
        return len(self._rows)

    def own(self, first: int, count: int) -> bytes:
        """The party's own blinded ids from position `first` of its secret order, at most `count` of them."""
        if first < 0 or count < 0:
            raise InputError(f"own ids from {first}, {count} of them: both have to be 0 or more")
        return self._group.blind(self._key, [self._compared[row] for row in self._rows[first : first + count]])

    def mask(self, data: bytes) -> bytes:
        """Mask elements of another party with this party's key, in order."""
        count = len(data) // self._group.element_bytes
        if count > self._may_mask:
            raise InputError(
                f"{count:,} elements to mask, and {self._may_mask:,} are left of this alignment's (parties − 1) · "
                f"max_ids; no party may have more than max_ids = {self._max_ids:,}"
            )
        masked = self._group.mask(self._key, data)
        self._may_mask -= count
        log.info("alignment: masked %d elements", count, extra={"elements": count, "left": self._may_mask})
        return masked

    def commit(self, pseudonyms: Sequence[str | None], views: Raw) -> PseudonymTable:
        """Build the table of the aligned samples.

        Parameters
        ----------
        pseudonyms
            One per id in the secret order, None where not all parties have the sample.
        views
            The views of `ids`, in the order of `ids`: changes are noticed by their fingerprint.
        """
        if len(pseudonyms) != len(self):
            raise InputError(f"{len(pseudonyms):,} pseudonyms for {len(self):,} ids; one per id is needed, or None")
        named = {name: row for name, row in zip(pseudonyms, self._rows, strict=True) if name is not None}
        wrong = [name for name in named if not (isinstance(name, str) and PSEUDONYM.fullmatch(name))]
        if wrong:
            raise InputError(f"{wrong[0]!r} is not a pseudonym: 32 hexadecimal digits are needed")
        if not named or len(named) < len(pseudonyms) - pseudonyms.count(None):
            raise InputError(f"{len(named):,} different pseudonyms: at least one is needed, and none twice")
        log.info("alignment: %d of %d ids aligned", len(named), len(self), extra={"aligned": len(named)})
        ordered = sorted(named)
        return PseudonymTable(
            tuple(self._ids[named[name]] for name in ordered), tuple(ordered), fingerprint(self._compared, views)
        )


@dataclass(frozen=True)
class Alignment:
    """What the coordinator learns from an alignment.

    Attributes
    ----------
    samples
        Pseudonyms of the samples that all parties have, sorted.
    pseudonyms
        By party: the pseudonym at each position of the party's secret order, None where the sample is not common.
    overlaps
        By group of parties: how many samples all of them have. Every group for up to four parties, else one, two and
        all.
    """

    samples: tuple[str, ...]
    pseudonyms: Mapping[str, Sequence[str | None]]
    overlaps: Mapping[tuple[str, ...], int]


def intersect(
    tags: Mapping[str, bytes], secret: bytes, *, max_ids: int = 1_000_000, group: BlindingGroup = P256
) -> Alignment:
    """Compare the fully masked lists of all parties.

    Parameters
    ----------
    tags
        By party: its list after all M passes.
    secret
        The coordinator's secret of at least 16 bytes: pseudonyms are its HMAC-SHA256 of the tags, 128 bits in hex. The
        same secret and keys give the same sample the same pseudonym again.
    max_ids
        Maximum number of ids of one party.
    group
        Where ids were blinded.
    """
    if len(tags) < 2 or len(secret) < 16:
        raise SettingError(
            f"{len(tags)} parties, {len(secret)} secret bytes; at least 2 parties and 16 bytes are needed"
        )
    lists: dict[str, Sequence[bytes]] = {}
    for party, data in tags.items():
        if not 0 < len(data) <= max_ids * group.element_bytes:
            raise InputError(f"party {party!r} sent {len(data):,} bytes; 1 to max_ids = {max_ids:,} tags are allowed")
        try:
            lists[party] = group.split(data)
        except InputError as error:
            raise InputError(f"party {party!r}: {error}") from None
    held: Counter[bytes] = Counter()
    for place, elements in enumerate(lists.values()):
        held.update(dict.fromkeys(elements, 1 << place))
    patterns = Counter(held.values())
    overlaps = {}
    for size in range(1, len(lists) + 1):
        if len(lists) <= 4 or size in (1, 2, len(lists)):
            for members in combinations(range(len(lists)), size):
                bits = sum(1 << member for member in members)
                shared = sum(count for pattern, count in patterns.items() if pattern & bits == bits)
                overlaps[tuple(list(lists)[member] for member in members)] = shared
    everyone = (1 << len(lists)) - 1
    names = {
        tag: hmac.digest(secret, tag, hashlib.sha256)[:16].hex() for tag, pattern in held.items() if pattern == everyone
    }
    sizes = "; ".join(f"{' ∩ '.join(members)}: {count:,}" for members, count in overlaps.items())
    log.info("alignment: %d samples in common", len(names), extra={"overlaps": sizes})
    if not names:
        raise DataError(
            f"no sample is held by all parties ({sizes}); check that all write ids alike: leading zeros, prefixes, "
            "upper and lower case"
        )
    return Alignment(tuple(sorted(names.values())), {p: [*map(names.get, e)] for p, e in lists.items()}, overlaps)
