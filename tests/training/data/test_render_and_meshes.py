from pathlib import Path

import numpy as np
import pytest

from gainroute.errors import DataError
from gainroute.training.data.meshes import Mesh, build_points, points_needed, read_off, sample_mesh
from gainroute.training.data.modelnet import load_modelnet40, read_points
from gainroute.training.data.render import CAMERAS, Resplat, centred, render
from gainroute.training.data.settings import AugmentSettings, DataSettings

BOX = """8 6 0
0 0 0
4 0 0
4 2 0
0 2 0
0 0 1
4 0 1
4 2 1
0 2 1
4 0 3 2 1
4 4 5 6 7
4 0 1 5 4
4 1 2 6 5
4 2 3 7 6
4 3 0 4 7
"""


def test_the_nearer_of_two_points_is_seen_from_above() -> None:
    points = np.array([[[0.0, 0.0, 0.9], [0.0, 0.0, -0.9], [0.6, 0.0, -0.9]]], np.float32)
    image = render(points, CAMERAS["top"], 8)[0, 0]
    assert np.count_nonzero(image) == 2
    assert image.max() == pytest.approx(0.2 + 0.8 * 1.9 / 2)
    assert render(points[:, ::-1], CAMERAS["top"], 8)[0, 0] == pytest.approx(image)


def test_from_the_diagonal_up_is_up() -> None:
    image = render(np.array([[[0.0, 0.0, 0.9]]], np.float32), CAMERAS["diagonal"], 16)[0, 0]
    assert np.argwhere(image)[0][0] < 8


def test_a_larger_splat_covers_more_and_left_out_points_cover_nothing() -> None:
    points = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 40, 3)).astype(np.float32)
    small, large = (np.count_nonzero(render(points, CAMERAS["top"], 32, splat)) for splat in (1, 3))
    assert large > 2 * small
    assert not render(points, CAMERAS["top"], 32, 1, np.zeros((2, 40), bool)).any()


def test_centred_clouds_fill_the_unit_ball() -> None:
    points = np.random.default_rng(0).normal(5, 3, (3, 50, 3)).astype(np.float32)
    assert np.allclose(np.linalg.norm(centred(points), axis=2).max(axis=1), 1, atol=1e-5)


def test_both_cameras_see_the_same_altered_object() -> None:
    points = centred(np.random.default_rng(0).normal(size=(4, 60, 3)).astype(np.float32))
    same = (CAMERAS["top"], CAMERAS["top"])
    augment = Resplat(points, same, 16, 1, AugmentSettings(turn=0.2, scale=(0.8, 1.1), stretch=0.1, drop=0.4, shift=2))
    one, other = (augment(party, np.arange(4), np.random.default_rng(3)) for party in (0, 1))
    assert np.array_equal(one, other)
    assert not np.array_equal(one, augment(0, np.arange(4), np.random.default_rng(4)))


@pytest.mark.parametrize("header", ["OFF\n", "OFF"])
def test_official_and_malformed_headers_give_the_same_mesh(tmp_path: Path, header: str) -> None:
    file = tmp_path / "box.off"
    file.write_text(header + BOX)
    mesh = read_off(file)
    assert mesh.vertices.shape == (8, 3)
    assert mesh.triangles.shape == (12, 3)


def test_samples_are_weighted_by_area() -> None:
    vertices = np.array([[0, 0, 0], [3, 0, 0], [0, 3, 0], [10, 0, 0], [11, 0, 0], [10, 1, 0]], float)
    mesh = Mesh(vertices, np.array([[0, 1, 2], [3, 4, 5]]))
    points = sample_mesh(mesh, 20_000, np.random.default_rng(0))
    assert (points[:, 0] >= 10).mean() == pytest.approx(0.1, abs=0.01)
    inside = points[points[:, 0] < 10]
    assert inside.mean(axis=0) == pytest.approx([1, 1, 0], abs=0.03)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PLY\n3 1 0", "does not begin with 'OFF'"),
        ("OFF\n3 0 0\n0 0 0\n1 0 0\n0 1 0\n", "without faces"),
        ("OFF\n3 1 0\n0 0 0\n1 nan 0\n0 1 0\n3 0 1 2\n", "NaN"),
        ("OFF\n3 1 0\n0 0 0\n1 0 0\n", "truncated"),
        ("OFF\n3 2 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n", "truncated"),
        ("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 9\n", "vertex 9"),
    ],
)
def test_a_mesh_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.off"
    file.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_off(file)
    assert "bad.off" in str(caught.value)


def test_a_mesh_without_area_is_refused() -> None:
    flat = Mesh(np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0]], float), np.array([[0, 1, 2]]))
    with pytest.raises(DataError, match="no area"):
        sample_mesh(flat, 10, np.random.default_rng(0))


def _tree(root: Path) -> Path:
    for name in ("chair", "bed"):
        for part, numbers in (("train", (1, 2)), ("test", (3,))):
            folder = root / "ModelNet40" / name / part
            folder.mkdir(parents=True)
            for number in numbers:
                (folder / f"{name}_{number:04d}.off").write_text("OFF" + BOX)
    return root / "ModelNet40"


def test_a_tree_of_meshes_becomes_views_and_a_finished_cloud_is_not_sampled_again(tmp_path: Path) -> None:
    tree, out = _tree(tmp_path), tmp_path / "data" / "modelnet40" / "points.npz"
    build_points(tree, out, count=64, workers=1)
    first = read_points(out)
    assert first["classes"].tolist() == ["bed", "chair"]
    assert first["points_train"].shape == (4, 64, 3)
    cached = sorted(out.parent.glob("clouds-*/*.npy"))
    assert len(cached) == 6
    (tree / "chair" / "train" / "chair_0001.off").write_text("now broken")
    build_points(tree, out, count=64, workers=1)
    assert np.array_equal(read_points(out)["points_train"], first["points_train"])
    dataset = load_modelnet40(DataSettings(source="modelnet40", image_size=16), tmp_path / "data")
    assert dataset.party_names == ("top", "diagonal")
    assert [view.shape for view in dataset.train.views] == [(4, 1, 16, 16)] * 2
    assert dataset.test.ids.tolist() == ["bed_0003", "chair_0003"]


def test_one_bad_mesh_stops_the_tree_by_name_and_keeps_the_others(tmp_path: Path) -> None:
    tree, out = _tree(tmp_path), tmp_path / "points.npz"
    (tree / "chair" / "test" / "chair_0003.off").write_text("OFF 1 0 0 0 0 0")
    with pytest.raises(DataError, match=r"chair_0003\.off"):
        build_points(tree, out, count=16, workers=1)
    assert not out.exists()
    assert list(tmp_path.glob("clouds-*/bed_0001.npy"))


def test_an_empty_tree_and_a_truncated_file_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"<class>/train/\*\.off"):
        build_points(tmp_path, tmp_path / "points.npz", count=16)
    file = tmp_path / "modelnet40" / "points.npz"
    with pytest.raises(DataError, match="gainroute data modelnet40"):
        read_points(file)
    file.parent.mkdir()
    np.savez(file, points_train=np.zeros((1, 4, 3)))
    with pytest.raises(DataError, match="has no 'points_test'"):
        read_points(file)
    file.write_bytes(file.read_bytes()[:80])
    with pytest.raises(DataError, match="truncated"):
        read_points(file)


def test_denser_images_need_more_points() -> None:
    assert points_needed(64) == 4 * points_needed(32)
