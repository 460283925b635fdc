import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from gainroute.training.defer import defer_loss, pool_defer
from gainroute.training.masked import random_presence, subsets
from gainroute.training.models.encoders import ResNet18
from gainroute.training.models.fusion import FusionHead
from gainroute.training.optimise import batches, one_cycle, seeded
from gainroute.training.settings import VflSettings
from gainroute.training.split_learning import FusionServer, InProcessParties, TrainingParty, train_split
from gainroute.training.stage import TrainingStage
from gainroute.training.training_view import TrainingView, place

N, K = 24, 3


class _Still:
    """A stepper that lets gradients be looked at instead of applying them."""

    def step(self) -> None:
        pass


def _views(parties: int = 2) -> tuple[list[TrainingView], torch.Tensor]:
    rng = np.random.default_rng(0)
    views = [TrainingView(rng.normal(size=(N, 1, 8, 8)).astype(np.float32), np.arange(N)) for _ in range(parties)]
    return views, torch.from_numpy(np.arange(N) % K)


@pytest.mark.parametrize("auxiliary", [0.0, 0.5])
def test_split_training_gives_the_gradients_of_one_monolithic_model(auxiliary: float) -> None:
    views, labels = _views()
    settings = VflSettings(epochs=1, batch=N, width=4, latent=8, auxiliary=auxiliary, label_smoothing=0.1, dropout=0.0)
    with seeded(0, "models"):
        encoders = [ResNet18(channels=1, width=4) for _ in views]
        heads = [nn.Linear(32, K) for _ in views]
        head = FusionHead(dimensions=[32, 32], latent=8, classes=K, dropout=0.0)
    rows = np.arange(N)
    parties = [
        TrainingParty(e, v, labels, settings, auxiliary=h if auxiliary else None, share=auxiliary / 2)
        for e, v, h in zip(encoders, views, heads, strict=True)
    ]
    server = FusionServer(head, labels, settings)
    for party in parties:
        party._stepper = _Still()  # type: ignore[assignment]
    server._stepper = _Still()  # type: ignore[assignment]
    for party in parties:
        party.begin_epoch(0, 0)
    _, gradients = server.step([party.forward(rows) for party in parties], rows)
    for party, gradient in zip(parties, gradients, strict=True):
        party.backward(gradient)
    modules = nn.ModuleList([*encoders, head, *heads])
    split = {name: p.grad.clone() for name, p in modules.named_parameters() if p.grad is not None}
    modules.zero_grad()

    embeddings = [e(torch.from_numpy(v.clean)) for e, v in zip(encoders, views, strict=True)]
    loss = functional.cross_entropy(head(embeddings), labels, label_smoothing=0.1)
    for extra, embedding in zip(heads, embeddings, strict=True):
        if auxiliary:
            loss = loss + auxiliary / 2 * functional.cross_entropy(extra(embedding), labels, label_smoothing=0.1)
    loss.backward()  # type: ignore[no-untyped-call]
    whole = {name: p.grad for name, p in modules.named_parameters() if p.grad is not None}
    assert whole.keys() == split.keys()
    for name, gradient in whole.items():
        assert torch.allclose(split[name], gradient, atol=1e-5), name
    assert max(gradient.abs().max() for gradient in split.values()) > 1e-3


def test_no_graph_leaves_a_party_and_no_view_reaches_the_server() -> None:
    views, labels = _views()
    settings = VflSettings(epochs=1, batch=8, width=4, latent=8)
    party = TrainingParty(ResNet18(channels=1, width=4), views[0], labels, settings)
    party.begin_epoch(0, 0)
    embedding = party.forward(np.arange(8))
    assert embedding.grad_fn is None
    assert not embedding.requires_grad
    assert embedding.shape == (8, 32)


def test_split_training_learns() -> None:
    views, labels = _views()
    for view in views:
        view.clean[:, 0, 0, :] += 3 * labels.numpy()[:, None]
    settings = VflSettings(epochs=15, batch=12, width=4, latent=8, rate=1e-2)
    with seeded(0, "models"):
        encoders = [ResNet18(channels=1, width=4) for _ in views]
        head = FusionHead(dimensions=[32, 32], latent=8, classes=K)
    parties = [TrainingParty(e, v, labels, settings) for e, v in zip(encoders, views, strict=True)]
    server = FusionServer(head, labels, settings)
    train_split(
        TrainingStage("vfl", seed=0), InProcessParties(dict(zip("ab", parties, strict=True))), server, N, settings
    )
    answer = head([e(torch.from_numpy(v.clean)) for e, v in zip(encoders, views, strict=True)]).argmax(dim=1)
    assert (answer == labels).float().mean() > 0.9


def test_the_defer_loss_is_the_papers() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 2.0]])
    labels, correct = torch.tensor([0, 1]), torch.tensor([True, False])
    p = logits.softmax(dim=1)
    expected = (-2 * p[0, 0].log() - p[0, 2].log() - 2 * p[1, 1].log()) / 2
    assert defer_loss(labels, correct, 2.0)(logits, torch.tensor([0, 1])) == pytest.approx(expected.item())


def test_pooling_averages_the_parties_before_the_score() -> None:
    one = torch.log(torch.tensor([[0.2, 0.1, 0.7], [0.6, 0.3, 0.1]]))
    two = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]]))
    pooled = pool_defer([one, two])
    assert pooled.score == pytest.approx([0.45 - 0.35, 0.1 - 0.6])
    assert pooled.prediction.tolist() == [0, 0]
    assert pooled.escalate_canonical.tolist() == [True, False]


def test_subsets_are_all_up_to_four_parties_and_few_beyond() -> None:
    assert len(subsets(3)) == 7
    assert len(subsets(4)) == 15
    many = subsets(20)
    assert len(many) == 20 + 20 + 18
    assert len(set(many)) == len(many)
    assert tuple(range(20)) in many


def test_every_random_subset_has_a_party_and_every_size_occurs() -> None:
    with seeded(0):
        present = random_presence(2000, 4)
    sizes = present.sum(dim=1)
    assert sizes.min() == 1
    assert torch.bincount(sizes)[1:].min() > 400
    assert present.float().mean(dim=0).std() < 0.03


def test_batches_visit_each_row_once_and_drop_a_remainder() -> None:
    rows = list(batches(10, 4, seed=0))
    assert [len(batch) for batch in rows] == [4, 4]
    assert len(set(np.concatenate(rows).tolist())) == 8
    assert [len(batch) for batch in batches(3, 8, seed=0)] == [3]


def test_the_rate_rises_to_its_peak_and_falls() -> None:
    rates = [one_cycle(step, 100, 1.0) for step in range(100)]
    assert max(rates) == pytest.approx(1.0)
    assert np.argmax(rates) == 30
    assert rates[0] == pytest.approx(0.04)
    assert rates[-1] < 0.01


def test_a_seeded_block_leaves_the_random_state_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with seeded(5, "x"):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(5, "x"):
        assert torch.equal(torch.rand(3), inside)


@pytest.mark.parametrize(("width", "last"), [(4, False), (8, True)])
def test_narrow_convolutions_keep_the_usual_layout_because_torch_corrupts_memory(width: int, last: bool) -> None:
    encoder = place(ResNet18(channels=3, width=width), "cpu")
    weight = next(p for p in encoder.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1)
    assert weight.is_contiguous(memory_format=torch.channels_last) is last
    encoder(torch.randn(8, 3, 8, 8)).sum().backward()
