"""Training of both routes: local classifiers, split training (VFL), masked head, learning to defer.

Nothing is imported here: `data`, `settings` and `route_answers` do not need torch, the other modules do.


Nothing is hidden that the method does not hide: the parties need the training labels for their Round-1 classifiers (and
for the losses at their encoders), as in the paper; gradients sent to a party can reveal labels; embeddings can be
inverted to views in part. Split training keeps views and encoders with their party, and guarantees no more than that.
"""

__all__: list[str] = []
