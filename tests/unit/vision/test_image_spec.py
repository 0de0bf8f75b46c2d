"""Tokens, positions and pixels of images are those of transformers' own processor and model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from triforge.errors import InputError, WeightsError
from triforge.testing.pictures import png
from triforge.types import ImageRef, PlacedImage
from triforge.vision.files import describe
from triforge.vision.image_spec import ImageSpec, pixels_of

Image = pytest.importorskip("PIL.Image", reason="pip install -c constraints.txt -e '.[vision]'")
processing = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")

SPEC = ImageSpec(image=5, video=6, start=7, end=8, min_pixels=28 * 28, max_pixels=28 * 28 * 12)
SIZES = [(28, 28), (56, 28), (29, 41), (1, 1), (640, 480), (97, 13), (14, 14), (42, 70), (333, 2)]


def ref(width: int, height: int) -> ImageRef:
    return ImageRef(
        id="sha256:" + "0" * 64, media_type="image/png", size=1, width=width, height=height
    )


def processor(image_spec: ImageSpec) -> object:
    return processing.Qwen2VLImageProcessorPil(
        size={"shortest_edge": image_spec.min_pixels, "longest_edge": image_spec.max_pixels}
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("image_spec", [SPEC, ImageSpec(image=5, video=6, start=7, end=8)])
def test_the_tokens_of_an_image_are_those_of_the_processor(
    size: tuple[int, int], image_spec: ImageSpec
) -> None:
    image = ref(*size)
    patches = processor(image_spec).get_number_of_image_patches(image.height, image.width)  # type: ignore[attr-defined]
    assert image_spec.tokens(image) == patches // 4
    assert image_spec.grid(image)[0] * image_spec.grid(image)[1] == patches


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
def test_the_pixels_of_an_image_are_those_of_the_processor(
    size: tuple[int, int], mode: str
) -> None:
    drawn = Image.open(io.BytesIO(png(*size))).convert(mode)
    sink = io.BytesIO()
    drawn.save(sink, "PNG")
    data = sink.getvalue()
    expected = processor(SPEC)(images=[drawn.convert("RGB")], return_tensors="np")  # type: ignore[operator]
    found = pixels_of(data, describe(data), SPEC)
    assert found.dtype == np.float32
    assert tuple(expected["image_grid_thw"][0][1:]) == SPEC.grid(describe(data))
    np.testing.assert_allclose(found, expected["pixel_values"], atol=2e-6)


def test_positions_are_those_of_the_model() -> None:
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.qwen2_5_vl.modeling_qwen2_5_vl")
    first, second = ref(56, 84), ref(28, 28)
    ids = [1, 7, *[5] * 6, 8, 2, 3, 7, 5, 8, 4, 4]
    images = [
        PlacedImage(image=first, start=2, end=8),
        PlacedImage(image=second, start=12, end=13),
    ]
    config = modeling.Qwen2_5_VLConfig(image_token_id=5)

    class Bare:
        pass

    bare = Bare()
    bare.config = config  # type: ignore[attr-defined]
    bare.get_vision_position_ids = (  # type: ignore[attr-defined]
        lambda *a, **k: modeling.Qwen2_5_VLModel.get_vision_position_ids(bare, *a, **k)
    )
    tokens = torch.tensor([ids])
    expected, delta = modeling.Qwen2_5_VLModel.get_rope_index(
        bare,
        tokens,
        (tokens == 5).int(),
        torch.tensor([[1, *SPEC.grid(first)], [1, *SPEC.grid(second)]]),
    )
    found, behind = SPEC.positions(len(ids), images)
    assert found.tolist() == expected[:, 0].tolist()
    assert behind == delta.item()


def test_text_alone_counts_up() -> None:
    found, behind = SPEC.positions(4, [])
    assert (found.tolist(), behind) == ([[0, 1, 2, 3]] * 3, 0)


def test_ids_are_expanded_and_collapsed_without_touching_the_rest() -> None:
    images = [ref(56, 84), ref(28, 28)]
    short = [1, 7, 5, 8, 2, 7, 5, 8]
    long, placed = SPEC.expanded(short, images, offset=0)
    assert long == [1, 7, *[5] * 6, 8, 2, 7, 5, 8]
    assert [(p.start, p.end) for p in placed] == [(2, 8), (11, 12)]
    assert SPEC.collapsed(long, placed) == short
    with pytest.raises(InputError, match="2 image tokens for 1 images"):
        SPEC.expanded(short, images[:1])


def test_an_image_of_another_model_or_out_of_order_is_refused() -> None:
    with pytest.raises(InputError, match="given 5 tokens, expected the 6"):
        SPEC.positions(9, [PlacedImage(image=ref(56, 84), start=2, end=7)])
    with pytest.raises(InputError, match="out of order"):
        SPEC.positions(7, [PlacedImage(image=ref(56, 84), start=2, end=8)])
    with pytest.raises(InputError, match="1 to 200"):
        SPEC.tokens(ref(201, 1))


def test_a_file_that_is_not_what_its_reference_says_is_refused() -> None:
    with pytest.raises(InputError, match="expected"):
        pixels_of(png(32, 32), ref(32, 33), SPEC)
    broken = png(32, 32)[:50]
    with pytest.raises(InputError, match="cannot be decoded"):
        pixels_of(broken, ref(32, 32), SPEC)


def folder(path: Path, **files: object) -> Path:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


CONFIG = {
    "model_type": "qwen2_5_vl", "image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7,
    "vision_end_token_id": 8, "vision_config": {"patch_size": 14},
}  # fmt: skip


@pytest.mark.parametrize(
    "sizes",
    [
        {"min_pixels": 784, "max_pixels": 9408},
        {"size": {"shortest_edge": 784, "longest_edge": 9408}},
    ],
)
def test_a_folder_says_how_its_model_sees(tmp_path: Path, sizes: dict[str, object]) -> None:
    assert ImageSpec.of_folder(folder(tmp_path, config=CONFIG, preprocessor_config=sizes)) == SPEC


def test_a_folder_of_a_model_of_text_says_nothing(tmp_path: Path) -> None:
    assert ImageSpec.of_folder(folder(tmp_path, config={"model_type": "llama"})) is None


def test_a_folder_that_says_half_is_refused(tmp_path: Path) -> None:
    folder(tmp_path, config=CONFIG)
    with pytest.raises(WeightsError, match=r"preprocessor_config\.json is missing"):
        ImageSpec.of_folder(tmp_path)
    folder(tmp_path, config={"model_type": "qwen2_vl"}, preprocessor_config={"min_pixels": 784})
    with pytest.raises(WeightsError, match="lacks"):
        ImageSpec.of_folder(tmp_path)
