"""Training of both routes: local classifiers, split (VFL), masked head, learning to defer.

Nothing is imported here: `settings` and `outcome` are read without torch, the other modules need it.

Who sees what, honestly: the parties need the training labels for their Round-1 classifiers (and for the
losses at their encoders), as in the paper; gradients that come down can reveal labels; embeddings that go
up can be inverted to views in part. Split training keeps views and encoders at their party, no more.
"""

__all__: list[str] = []
