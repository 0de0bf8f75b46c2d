"""A damaged or foreign weight folder is refused before any engine is disturbed, and the sentence says what is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from services.policy.weights.evidence import as_bfloat16, choose_rows, compare_rows
from services.policy.weights.folder import check_contents, check_folder, read_weights
from tests.fake_engine import write_tensors
from triforge.errors import WeightsError
from triforge.store.manifests import write_manifest
from triforge.store.tensor_files import all_finite, read_header

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 2,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
FILE = "model.safetensors"


def tensors(scale: float = 1.0) -> dict[str, np.ndarray]:
    rows = np.arange(24, dtype=np.float32).reshape(6, 4) * np.float32(0.01 * scale)
    return {"model.embed_tokens.weight": rows, "model.norm.weight": np.ones(4, np.float32) * scale}


def publish(folder: Path, held: dict[str, np.ndarray], **config: object) -> str:
    """Write a folder with its manifest; returns the digest."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    write_tensors(folder, held)
    return write_manifest(folder, {"version": 3})


def as_before(folder: Path) -> str:
    """Take the fast checksums out of a manifest: what was published before there were any; returns the digest."""
    path = folder / "manifest.json"
    about = json.loads(path.read_text())
    for entry in about["files"].values():
        del entry["xxh3_128"]
    path.write_text(json.dumps(about))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def serving(tmp_path: Path) -> Path:
    publish(tmp_path / "old", tensors())
    return tmp_path / "old"


def check(folder: Path, digest: str, serving: Path, depth: str = "contents") -> None:
    check_folder(folder, digest=digest, depth=depth, serving=read_weights(serving))  # type: ignore[arg-type]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("damage", "depth", "sentence"),
    [
        (lambda f: (f / FILE).unlink(), "sizes", "model.safetensors is missing, manifest.json"),
        (lambda f: cut(f / FILE), "sizes", r"model.safetensors has \d+ bytes, expected \d+"),
        (lambda f: flip(f / "config.json"), "sizes", "config.json: cannot be read"),
        (lambda f: (f / "manifest.json").write_text("{}"), "sizes", "digest of manifest.json is"),
    ],
)
def test_damage_after_the_publication_is_named(
    tmp_path: Path, serving: Path, damage: Callable[[Path], object], depth: str, sentence: str
) -> None:
    digest = publish(tmp_path / "new", tensors(2.0))
    damage(tmp_path / "new")
    with pytest.raises(WeightsError, match=sentence):
        check(tmp_path / "new", digest, serving, depth)


@pytest.mark.parametrize(("old", "kind"), [(False, "XXH3-128"), (True, "SHA-256")])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.999])
def test_one_flipped_bit_anywhere_is_damage(
    tmp_path: Path, serving: Path, old: bool, kind: str, place: float
) -> None:
    long = np.arange(3 * 2**18 + 5, dtype=np.float32)  # several blocks, and a rest
    held = tensors() | {"model.embed_tokens.weight": long.reshape(1, -1)}
    digest = publish(tmp_path / "new", held)
    digest = as_before(tmp_path / "new") if old else digest
    check_folder(tmp_path / "new", digest=digest, depth="contents")
    path = tmp_path / "new" / FILE
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << 6
    path.write_bytes(bytes(data))
    with pytest.raises(
        WeightsError, match=rf"{FILE} has changed after it was published: its {kind}"
    ):
        check_folder(tmp_path / "new", digest=digest, depth="contents")


def test_each_of_several_files_is_checked(tmp_path: Path, serving: Path) -> None:
    digest, places = publish(tmp_path / "new", {}), {}
    for number, (name, held) in enumerate(tensors(2.0).items()):
        write_tensors(tmp_path / "new", {name: held})
        places[name] = f"model-{number}.safetensors"
        (tmp_path / "new" / FILE).rename(tmp_path / "new" / places[name])
    index = {"metadata": {}, "weight_map": places}
    (tmp_path / "new" / f"{FILE}.index.json").write_text(json.dumps(index))
    digest = write_manifest(tmp_path / "new", {"version": 3})
    check(tmp_path / "new", digest, serving)
    flip(tmp_path / "new" / "model-1.safetensors")
    with pytest.raises(WeightsError, match=r"model-1.safetensors has changed after"):
        check(tmp_path / "new", digest, serving)


def test_not_a_number_is_found_in_every_block_of_a_tensor(tmp_path: Path) -> None:
    for place in (0, 2**18 - 1, 2**18, 2**19 + 3):
        held = {"a.weight": np.ones(3, np.float32), "b.weight": np.ones(2**19 + 4, np.float32)}
        held["b.weight"][place] = -np.nan
        digest = publish(tmp_path / "new", held)
        with pytest.raises(WeightsError, match=r"tensor b.weight holds values that are not finite"):
            check_folder(tmp_path / "new", digest=digest, depth="contents")
        with pytest.raises(WeightsError, match=r"tensor b.weight holds values that are not finite"):
            check_folder(tmp_path / "new", digest="", depth="contents")


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    publish(tmp_path / "new", tensors())
    found = read_weights(tmp_path / "new")
    cut(tmp_path / "new" / FILE)
    with pytest.raises(WeightsError, match="became shorter while it was read"):
        check_contents(found.tensors, None)
    (tmp_path / "new" / FILE).unlink()
    with pytest.raises(WeightsError, match=r"model.safetensors cannot be read: No such file"):
        check_contents(found.tensors, None)


@pytest.mark.parametrize(
    ("change", "config", "sentence"),
    [
        (lambda t: t.update(odd=np.ones(2, np.float32)), {}, "tensor odd is unknown to the model"),
        (
            lambda t: t.update({"model.norm.weight": np.ones(5, np.float32)}),
            {},
            r"tensor model.norm.weight has shape \[5\], expected \[4\]",
        ),
        (lambda t: None, {"num_attention_heads": 4}, "num_attention_heads is 4, expected 2"),
    ],
)
def test_weights_of_another_model_or_without_sense_are_named(
    tmp_path: Path,
    serving: Path,
    change: Callable[[dict[str, np.ndarray]], object],
    config: dict[str, object],
    sentence: str,
) -> None:
    held = tensors(2.0)
    change(held)
    digest = publish(tmp_path / "new", held, **config)
    with pytest.raises(WeightsError, match=sentence):
        check(tmp_path / "new", digest, serving)


def test_the_other_files_of_a_folder_are_checked_too(tmp_path: Path, serving: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "tokenizer.json").write_text("{}")
    digest = publish(tmp_path / "new", tensors(2.0))
    (tmp_path / "new" / "tokenizer.json").write_text("[]")
    check(tmp_path / "new", digest, serving, "sizes")
    with pytest.raises(WeightsError, match=r"tokenizer.json has changed after"):
        check(tmp_path / "new", digest, serving)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no safetensors file"),
        (b"\x08\0\0\0\0\0\0\0notjson!", "header cannot be read"),
        ((2**40).to_bytes(8, "little"), "no safetensors file"),
        (b"\x02\0\0\0\0\0\0\0{}extra", "is truncated"),
    ],
)
def test_file_that_is_no_safetensors(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=sentence):
        read_header(path)


def test_not_a_number_is_found_in_every_floating_type() -> None:
    for kind, dtype in (("F32", "<f4"), ("F16", "<f2"), ("F64", "<f8")):
        largest = np.finfo(dtype).max
        good = np.array([1.0, -2.0, 0.0, -0.0, largest, -largest], dtype)
        assert all_finite(good.tobytes(), kind)
        assert all_finite(memoryview(-np.abs(good)).cast("B"), kind)
        for odd in (np.inf, -np.inf, np.nan, -np.nan):
            for place in range(len(good)):
                bad = good.copy()
                bad[place] = odd
                assert not all_finite(bad.tobytes(), kind), (kind, odd, place)
    assert all_finite(b"\xff\xff", "U8")
    assert all_finite(b"", "F32")


def test_every_value_of_the_small_types_is_known_for_finite_or_not() -> None:
    for bits in range(1 << 16):
        data = bits.to_bytes(2, "little")
        assert all_finite(data, "F16") == bool(np.isfinite(np.frombuffer(data, "<f2")[0]))
        assert all_finite(data, "BF16") == bool(
            np.isfinite(np.frombuffer(b"\0\0" + data, "<f4")[0])
        )
    for bits in range(1 << 8):
        data = bits.to_bytes(1, "little")
        assert all_finite(data, "F8_E4M3") == (bits & 0x7F != 0x7F)  # no infinity, one NaN a sign
        assert all_finite(data, "F8_E5M2") == bool(
            np.isfinite(np.frombuffer(b"\0" + data, "<f2")[0])
        )


def test_engines_are_asked_for_what_has_changed(tmp_path: Path, serving: Path) -> None:
    held = tensors()
    held["model.norm.weight"] = held["model.norm.weight"] + np.float32(0.5)
    publish(tmp_path / "new", held)
    first, *_ = choose_rows(read_weights(tmp_path / "new").rows, read_weights(serving).rows)
    assert (first.name, first.count) == ("model.norm.weight", 512)
    compare_rows(first, [1.5] * 4)
    with pytest.raises(WeightsError, match=r"holds \[1, 1, 1, ...\], expected \[1.5, 1.5, 1.5"):
        compare_rows(first, [1.0] * 4)


def test_rows_may_have_the_rounding_of_the_engines_own_type_and_no_other(tmp_path: Path) -> None:
    publish(tmp_path / "new", {"m.weight": np.array([[0.1, 0.2], [0.3, 1.7]], np.float32)})
    (shown,) = choose_rows(read_weights(tmp_path / "new").rows, {})
    compare_rows(shown, shown.values.tolist())
    compare_rows(shown, as_bfloat16(shown.values).tolist())
    compare_rows(shown, shown.values.astype(np.float16).tolist())
    compare_rows(shown, shown.values[:, :1].tolist())  # the engine splits the rows over two devices
    for wrong in (
        (shown.values + 1e-7).tolist(),
        shown.values[:1].tolist(),
        [],
        None,
        "no",
        [1.0],
        [[], []],
    ):
        with pytest.raises(WeightsError, match=r"tensor m.weight"):
            compare_rows(shown, wrong)


def test_bfloat16_rounds_to_the_nearest_and_ties_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF], np.uint32)
    wanted = np.array([0x3F800000, 0x3F820000, 0x3F810000, 0x3F800000], np.uint32)
    np.testing.assert_array_equal(
        as_bfloat16(bits.view(np.float32).astype(np.float64)), wanted.view(np.float32)
    )
