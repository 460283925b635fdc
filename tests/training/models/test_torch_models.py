from pathlib import Path

import pytest
import torch
from damage import damaged
from hypothesis import given, settings
from hypothesis import strategies as st

from gainroute.errors import ArtifactError, NotAnArtifactError, SettingError, ShapeError
from gainroute.training.models.build import ModelSpec, build_model, load_model, save_model
from gainroute.training.models.convolution import Convolution, Smooth
from gainroute.training.models.encoders import STEMS, ResNet18
from gainroute.training.models.fusion import FusionHead
from gainroute.training.models.local import LocalCNN


@pytest.mark.parametrize("size", [4, 16, 32])
def test_the_local_net_is_light_and_takes_any_size(size: int) -> None:
    model = LocalCNN(channels=1, size=size, outputs=40)
    assert model(torch.zeros(2, 1, size, size)).shape == (2, 40)
    assert sum(p.numel() for p in model.parameters()) < 30_000
    assert len(model.blocks) == 5


@pytest.mark.parametrize("stem", STEMS)
def test_an_embedding_has_eight_times_the_width(stem: str) -> None:
    assert ResNet18(channels=3, width=8, stem=stem)(torch.zeros(2, 3, 16, 16)).shape == (2, 64)


def test_at_width_64_it_is_the_usual_resnet18() -> None:
    model = ResNet18(channels=3, width=64, stem="7x7-stride2-pool")
    assert sum(p.numel() for p in model.parameters()) == 11_176_512, "11,689,512 less the 513,000 of its classifier"


def test_with_group_normalisation_a_sample_is_encoded_alike_in_training_and_alone() -> None:
    views = torch.randn(6, 3, 8, 8)
    model = ResNet18(channels=3, width=8, norm="group").train()
    together = model(views)
    assert torch.allclose(together[:1], model.eval()(views[:1]), atol=1e-5)
    assert ResNet18(channels=3, width=4, norm="group")(views).shape == (6, 32), "fewer channels than groups"


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (4, 4)])
def test_a_convolution_of_few_pixels_is_that_of_torch(size: tuple[int, int], stride: int) -> None:
    ours = Convolution(8, 16, stride=stride).double()
    maps = torch.randn(3, 8, *size, dtype=torch.float64, requires_grad=True)
    found = ours(maps)
    expected = torch.nn.functional.conv2d(maps, ours.weight, stride=stride, padding=1)
    torch.testing.assert_close(found, expected)
    back = torch.randn_like(expected)
    for gradient, other in zip(
        torch.autograd.grad(found, [maps, ours.weight], back),
        torch.autograd.grad(expected, [maps, ours.weight], back),
        strict=True,
    ):
        torch.testing.assert_close(gradient, other)


def test_a_smoothing_encoder_sees_every_pixel_averaged_with_its_neighbours() -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 5, 5)
    edged = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate")
    shares = [(y, x, (2 - abs(y - 1)) * (2 - abs(x - 1)) / 16) for y in range(3) for x in range(3)]
    mean = sum(share * edged[:, :, y : y + 5, x : x + 5] for y, x, share in shares)
    torch.testing.assert_close(Smooth(3)(images), mean)
    plain, smooth = (ResNet18(channels=3, width=8, smooth=smooth).eval() for smooth in (False, True))
    smooth.load_state_dict(plain.state_dict())  # the filter is not a weight
    torch.testing.assert_close(smooth(images), plain(Smooth(3)(images)))


def test_an_unknown_stem_or_kind_is_named() -> None:
    with pytest.raises(SettingError, match="stem '5x5' is unknown: one of 3x3"):
        ResNet18(channels=1, stem="5x5")
    with pytest.raises(SettingError, match="norm 'layer' is unknown: one of batch, group"):
        ResNet18(channels=1, norm="layer")
    with pytest.raises(SettingError, match="model kind 'vit' is unknown"):
        build_model(ModelSpec("vit", {}))


def _head(parties: int = 3) -> FusionHead:
    torch.manual_seed(0)
    return FusionHead(dimensions=[6] * parties, latent=8, classes=4).eval()


def test_an_absent_party_is_never_looked_at() -> None:
    head, embeddings = _head(), [torch.randn(5, 6) for _ in range(3)]
    present = torch.tensor([True, False, True]).expand(5, -1)
    clean = head(embeddings, present)
    embeddings[1] = torch.full((5, 6), float("nan"))
    assert torch.equal(head(embeddings, present), clean)
    assert torch.isfinite(clean).all()


def test_all_present_is_the_same_as_no_mask_and_gates_depend_on_the_sample() -> None:
    head, embeddings = _head(), [torch.randn(5, 6) for _ in range(3)]
    everyone = torch.ones(5, 3, dtype=torch.bool)
    assert torch.allclose(head(embeddings), head(embeddings, everyone))
    latents = torch.stack([project(e) for project, e in zip(head.project, embeddings, strict=True)], dim=1)
    gates = head.gates(latents, everyone)
    assert torch.allclose(gates.sum(dim=1), torch.ones(5))
    assert gates.std(dim=0).max() > 1e-4


def test_interactions_are_the_mean_over_pairs() -> None:
    head, seen = _head(), []
    head.classify.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    embeddings = [torch.randn(5, 6) for _ in range(3)]
    head(embeddings)
    z = [project(e) for project, e in zip(head.project, embeddings, strict=True)]
    expected = (z[0] * z[1] + z[0] * z[2] + z[1] * z[2]) / 3
    assert torch.allclose(seen[0][:, 8:], expected, atol=1e-6)


def test_the_wrong_number_of_embeddings_is_refused() -> None:
    with pytest.raises(ShapeError, match="2 embeddings: the head was built for 3"):
        _head()([torch.zeros(1, 6)] * 2)


def test_a_saved_model_answers_the_same_and_a_damaged_file_says_so(tmp_path: Path) -> None:
    spec = ModelSpec("resnet18", {"channels": 1, "width": 4, "stem": "3x3"})
    model, path = build_model(spec).eval(), tmp_path / "encoder.safetensors"
    save_model(model, spec, path)
    view = torch.randn(3, 1, 8, 8)
    assert torch.equal(load_model(path)(view), model(view))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(NotAnArtifactError, match="not a safetensors file"):
        load_model(path)
    with pytest.raises(ArtifactError, match="does not exist"):
        load_model(tmp_path / "none.safetensors")


@pytest.mark.parametrize("kind", ["fusion", "local-mlp"])
def test_a_damaged_model_is_loaded_or_refused_with_our_error(
    tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    options = {
        "fusion": {"dimensions": [3, 2], "latent": 4, "classes": 3, "dropout": 0.1},
        "local-mlp": {"features": 3, "outputs": 3, "widths": [4], "dropout": 0.1},
    }[kind]
    spec, path = ModelSpec(kind, options), tmp_path_factory.mktemp("damaged") / "head.safetensors"
    save_model(build_model(spec), spec, path)
    content, refused = path.read_bytes(), 0

    @settings(max_examples=200, deadline=None, database=None)
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        nonlocal refused
        path.write_bytes(damaged(content, "gainroute_model", seed))
        try:
            load_model(path)
        except ArtifactError:
            refused += 1

    check()
    assert refused > 50
