"""Plans of boxes with one to eight cards: what goes where, what is refused, and what is written for other deployments."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.unit.planning.test_memory import QWEN3
from triforge.cli.main import command_line
from triforge.config import RunConfig, parse
from triforge.errors import ConfigError
from triforge.planning.cards import Card, find_cards
from triforge.planning.memory import GIB, USABLE
from triforge.planning.options import sglang_options
from triforge.planning.plan import Plan, fitted, make_plan, served
from triforge.planning.shapes import LINEAR, ModelShape
from triforge.planning.write import compose, kubernetes

ROOT = Path(__file__).parents[3]
QWEN_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False, "max_position_embeddings": 32768,
}  # fmt: skip
SHAPES_OF_PAGE = {
    "Qwen2.5-7B-Instruct": QWEN_7B,
    "Qwen3-1.7B": QWEN_7B | {
        "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": True,
    },
}  # fmt: skip
SMALL = QWEN_7B | {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}
GPU_PAGE = (ROOT / "docs" / "operate.md").read_text()
SAVING = {"activation_checkpointing": True}


def config_of(trainer: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    """A run of a policy alone, or with `votes` of a reward model, with the same learner's options for both."""
    preset = sections.pop("preset", "grpo")
    both = {"policy": trainer or {}, "reward": trainer or {}}
    models = {role: {"path": "/m"} for role in ("policy", "reward")}
    document = {
        "algorithm": {"preset": preset}, "adaptation": {"controller": "none"}, "trainer": both, "models": models,
    }  # fmt: skip
    return parse(document | sections)


def document_of(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude_unset=True)


def written_of(plan: Plan, config: RunConfig) -> dict[str, Any]:
    text = compose(plan, document_of(config)).replace("!override ", "")
    return dict(yaml.safe_load(text)["services"])


def plan_of(config: RunConfig, gpus: str, shape: dict[str, Any] = QWEN_7B) -> Plan:
    found = ModelShape.of_config(shape, "config.json")
    shapes = dict.fromkeys(("policy", "reward"), found)
    return make_plan(config, shapes, find_cards(gpus), served(config))


def test_shape_of_qwen_is_its_number_of_weights() -> None:
    assert ModelShape.of_config(QWEN_7B, "config.json").weights == pytest.approx(7.616e9, rel=1e-3)


@pytest.mark.parametrize(
    ("gpus", "trainer", "preset", "engines", "ranks"),
    [
        ("8x80GB", SAVING, "grpo", 2, [6]),
        ("8x80GB", SAVING, "rlanything", 2, [3, 3]),
        ("4x80GB", SAVING | {"lora_rank": 16}, "rlanything", 2, [1, 1]),
        ("2x80GB", SAVING | {"lora_rank": 16}, "rlanything", 2, [1, 1]),
    ],
)
def test_plan_gives_each_part_what_holds_it(
    gpus: str, trainer: dict[str, Any], preset: str, engines: int, ranks: list[int]
) -> None:
    plan = plan_of(config_of(trainer, preset=preset), gpus)
    assert len(plan.engines) == engines
    assert [learner.ranks for learner in plan.learners] == ranks
    serving = {card for engine in plan.engines for card in engine.cards}
    training = {card for learner in plan.learners for card in learner.cards}
    assert not serving & training
    assert serving | training == set(range(len(plan.cards)))
    for card in plan.cards:
        held = sum(one.memory.total for one in plan.learners if card.index in one.cards)
        assert held <= USABLE * card.memory
        held = sum(one.memory.total for one in plan.engines if card.index in one.cards)
        assert held <= 0.86 * card.memory


def test_engines_that_share_a_card_divide_it() -> None:
    plan = plan_of(config_of(SAVING | {"lora_rank": 16}, preset="rlanything"), "2x80GB")
    first, second = plan.engines
    assert first.cards == second.cards
    assert first.memory_fraction + second.memory_fraction == pytest.approx(0.85, abs=0.01)


def test_one_card_is_shared_in_turns() -> None:
    config = config_of(SAVING | {"lora_rank": 16}, run={"colocate": True})
    plan = plan_of(config, "1x80GB")
    assert plan.engines[0].cards == plan.learners[0].cards == (0,)
    with pytest.raises(ConfigError):
        plan_of(config_of(SAVING | {"lora_rank": 16}), "1x80GB")


def test_refusal_names_options_with_which_it_fits() -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(config_of(), "8x80GB")
    fits = [
        text.removeprefix("it fits with ") for text in refused.value.problems if "fits with" in text
    ]
    assert "--set trainer.policy.activation_checkpointing=true" in fits
    plan_of(config_of(SAVING), "8x80GB")
    with pytest.raises(ConfigError) as refused:
        plan_of(config_of(), "1x80GB")
    assert any("lora_rank=16 --colocate" in text for text in refused.value.problems)


def test_refusal_counts_the_cards_of_a_run_that_takes_no_turns() -> None:
    run = {"colocate": True}
    with pytest.raises(ConfigError) as refused:
        plan_of(config_of(SAVING, run=run), "1x80GB")
    assert any("4 such cards --no-colocate" in text for text in refused.value.problems)
    plan_of(config_of(SAVING), "4x80GB")
    with pytest.raises(ConfigError):
        plan_of(config_of(SAVING), "3x80GB")


def test_refusal_of_turns_counts_from_the_cards_that_are_given() -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(config_of(SAVING, run={"colocate": True}), "8x80GB")
    assert "--colocate uses one card" in refused.value.problems
    assert "it fits with --no-colocate" in refused.value.problems
    idle = plan_of(config_of(SAVING | {"lora_rank": 16}, run={"colocate": True}), "4x80GB")
    assert any("3 of 4 cards are idle" in note for note in idle.notes)


def test_refusal_of_one_card_says_why_and_what_of_it_is_usable() -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(config_of(), "1x24GB", SMALL)
    assert any("cards of their own" in text for text in refused.value.problems)
    assert any("22.1 of 24 GiB" in text for text in refused.value.problems)


def test_refusal_offers_smaller_passes_last_and_says_what_they_hold() -> None:
    options = SAVING | {"token_budget": 65_536, "max_tokens": 65_536}
    shapes = {"policy": replace(QWEN3["4B"], longest=65_536)}
    with pytest.raises(ConfigError) as refused:
        make_plan(config_of(options), shapes, find_cards("3x80GB"), ["policy"])
    fits = [text for text in refused.value.problems if "it fits" in text]
    smaller = [text for text in fits if "token_budget" in text]
    assert smaller
    assert fits[-len(smaller) :] == smaller
    assert "lora_rank" in fits[0]
    assert all("rows of up to" in text for text in smaller)
    assert not any("rows of up to" in text for text in fits[: -len(smaller)])


@pytest.mark.parametrize("lora", [0, 16])
@pytest.mark.parametrize("model", ["0.6B", "1.7B", "4B"])
def test_update_of_65536_tokens_is_planned_as_the_page_says(model: str, lora: int) -> None:
    """On one card; logits are in chunks, for all of them at once would be 93 GiB."""
    row = next(line for line in GPU_PAGE.splitlines() if line.startswith(f"| {model} |"))
    said = row.split("|")[5 if lora else 4].strip()
    options = {"token_budget": 65_536, "max_tokens": 65_536, "lora_rank": lora}
    document = {
        "algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}, "trainer": {"policy": options},
        "models": {"policy": {"path": "/m"}}, "run": {"colocate": True},
    }  # fmt: skip
    shapes = {"policy": QWEN3[model]}
    if ":" not in said:
        saving, plan = fitted(document, shapes, find_cards("1x80GB"), ["policy"])
        assert saving["trainer"]["policy"]["activation_checkpointing"]
        assert f"{plan.learners[0].memory.total / GIB:.0f}" == said
        assert plan.learners[0].memory.working < 12 * GIB
        return
    needed, cards = re.findall(r"\d+", said)
    with pytest.raises(ConfigError) as refused:
        fitted(document, shapes, find_cards("1x80GB"), ["policy"])
    problems = " ".join(refused.value.problems)
    assert f"needs {needed} GiB" in problems
    assert f"fits with {cards} such cards" in problems
    assert "lora_rank=16" in problems


@pytest.mark.parametrize(
    "command",
    re.findall(r"^triforge (?:plan|train) --model .*$", GPU_PAGE.replace("\\\n ", ""), re.M),
)
def test_each_training_of_the_page_fits_its_cards(command: str, tmp_path: Path) -> None:
    words = re.sub("--env [a-z]+", "", command.partition("#")[0]).split()[2:]
    for at, word in enumerate(words):
        if word.startswith("Qwen/"):
            config = SHAPES_OF_PAGE[word.removeprefix("Qwen/")]
            (tmp_path / "config.json").write_text(json.dumps(config))
            words[at] = str(tmp_path)
    cards = words.index("--gpus") + 1
    words[cards] = words[cards].removesuffix("x80GB") + "x80GB"
    done = CliRunner().invoke(command_line({"plan"}), ["plan", *words])
    assert done.exit_code == 0, (done.output, done.exception)


def test_rows_that_a_card_does_not_hold_are_noted() -> None:
    assert any(
        "activation_checkpointing" in note
        for note in plan_of(config_of({"token_budget": 4096}), "8x80GB").notes
    )
    assert not plan_of(config_of({"max_tokens": 4096}), "8x80GB", SMALL).notes


def test_the_documents_own_choice_stands() -> None:
    models = {"policy": {"path": "/m", "gpus": [4, 5, 6, 7], "tensor_parallel": 2}}
    trainer = SAVING | {"gpus": [0, 1, 2]}
    plan = plan_of(config_of(trainer, models=models), "8x80GB")
    assert [engine.cards for engine in plan.engines] == [(4, 5), (6, 7)]
    assert plan.learners[0].cards == (0, 1, 2)
    for wrong in ({"gpus": [9]}, {"gpus": [0, 1, 2], "tensor_parallel": 2}):
        with pytest.raises(ConfigError, match=r"models\.policy\.gpus"):
            plan_of(config_of(SAVING, models={"policy": {"path": "/m", **wrong}}), "8x80GB")


def test_without_cards_the_document_says_how_many_ranks() -> None:
    plan = plan_of(config_of({"ranks": 2}), "0")
    assert (plan.learners[0].ranks, plan.learners[0].cards, plan.phases) == (2, (), ())


def test_without_cards_what_the_machine_does_not_hold_is_noted() -> None:
    small, large = SMALL | {"num_hidden_layers": 1}, QWEN_7B | {"num_hidden_layers": 100_000}
    notes = plan_of(config_of({"token_budget": 64}), "0", small).notes
    assert not [note for note in notes if "this machine has" in note]  # its disk may be full
    notes = plan_of(config_of(), "0", large).notes
    assert "this machine has" in notes[0]
    assert "of the disk here" in notes[1]


def test_seconds_name_the_data_sheet_and_are_left_out_without_one() -> None:
    plan = plan_of(config_of(SAVING | {"lora_rank": 16}), "2x80GB")
    assert (
        "128 rows a step, 14 turns and 1,792 tokens a row; data sheet of the H100" in plan.assumed
    )
    assert not plan_of(config_of(SAVING | {"lora_rank": 16}), "2x24GB", SMALL).phases
    assert Card(0, 24 * GIB).speed is None
    assert Card(0, 79 * GIB, "NVIDIA H200").sheet == "H200"


def test_publishing_moves_checkpoint_once_and_version_twice() -> None:
    plan = plan_of(config_of(SAVING), "8x80GB")
    kept, phase = plan.disk[0], plan.phases[-1]
    assert phase.seconds == pytest.approx((kept.checkpoint + 2 * kept.version) / 1e9)
    assert phase.rate.endswith("version twice, checkpoint")


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Put an `nvidia-smi` of so many H100 first on PATH."""

    def install(cards: int) -> None:
        lines = "".join(f"{n}, GPU-{n}a, NVIDIA H100 80GB HBM3, 81559\n" for n in range(cards))
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}END\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return install


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_cards_of_the_machine(
    nvidia_smi: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    nvidia_smi(count)
    cards = find_cards("")
    assert cards == [Card(n, 81559 * 2**20, "NVIDIA H100 80GB HBM3") for n in range(count)]
    assert find_cards("1") == cards[:1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-0a,GPU-7a")
    assert find_cards("") == [cards[n] for n in (0, 7) if n < count]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(ConfigError, match=f"given {count + 1}"):
        find_cards(str(count + 1))


def test_a_machine_without_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_cards("") == []
    assert find_cards("2x24GB")[1] == Card(1, 24 * GIB)
    with pytest.raises(ConfigError, match="--gpus 8x80GB"):
        find_cards("8")
    with pytest.raises(ConfigError, match=r"machine\.gpus: given '8xH100': expected .* 8x80GB"):
        parse({"machine": {"gpus": "8xH100"}})


def test_compose_override_starts_what_the_plan_says() -> None:
    config = config_of(SAVING)
    plan = plan_of(config, "8x80GB")
    written = written_of(plan, config)
    base = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    command = written["sglang-policy"]["command"]
    assert command[: len(base["sglang-policy"]["command"])] == base["sglang-policy"]["command"]
    assert command[-2:] == ["--tp=1", "--mem-fraction-static=0.85"]
    device = written["cuda-learner-policy"]["deploy"]["resources"]["reservations"]["devices"][0]
    assert device["device_ids"] == [str(card) for card in plan.learners[0].cards]
    assert "--nproc-per-node=6" in written["cuda-learner-policy"]["entrypoint"]
    assert written["policy-model"]["environment"]["TRIFORGE_ENGINES"].count("http://") == 2
    for name in ("sglang-reward", "sglang-rewriter", "cuda-learner-reward"):
        assert written[name] == {"profiles": ["unused"]}


def test_values_of_the_chart_follow_its_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    chart = ROOT / "k8s" / "helm" / "triforge"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    config = config_of(SAVING)
    written = yaml.safe_load(kubernetes(plan_of(config, "8x80GB"), document_of(config)))
    jsonschema.validate(values | written, json.loads((chart / "values.schema.json").read_text()))
    assert written["learners"] == {"policy": {"nodes": 1, "gpus": 6}}
    assert written["replicas"]["engine-policy"] == 2
    config = config_of(SAVING | {"lora_rank": 16}, preset="rlanything")
    shared = plan_of(config, "2x80GB")
    with pytest.raises(ConfigError, match="share cards"):
        kubernetes(shared, document_of(config))


def test_written_engines_take_adapters_and_turns() -> None:
    config = config_of(SAVING | {"lora_rank": 16}, run={"colocate": True})
    command = written_of(plan_of(config, "1x80GB"), config)["sglang-policy"]["command"]
    options = set(sglang_options(config, "policy", LINEAR))
    assert {"--enable-lora", "--max-lora-rank=16", "q_proj", "--enable-memory-saver"} <= options
    assert options <= set(command)
    config = config_of(SAVING | {"lora_rank": 16, "lora_targets": ("q_proj",)})
    values = yaml.safe_load(kubernetes(plan_of(config, "2x80GB"), document_of(config)))
    assert values["engines"]["policy"]["args"][1:] == sglang_options(config, "policy", LINEAR)
    assert "k_proj" not in values["engines"]["policy"]["args"]


def test_written_file_has_the_runs_document_as_a_comment() -> None:
    config = config_of(SAVING | {"lora_rank": 16})
    document = document_of(config)
    text = compose(plan_of(config, "2x80GB"), document | {"machine": {"gpus": "2x80GB"}})
    comment = [line[2:] for line in text.splitlines() if line.startswith("#")]
    assert tomllib.loads("\n".join(comment[2:])) == document


def test_command_plans_from_a_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    options = ["--model", str(tmp_path), "--gpus", "8x80GB"]
    done = CliRunner().invoke(command_line({"plan"}), ["plan", *options, "--json"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert [one["role"] for one in plan["learners"]] == ["policy"]
    assert plan["learners"][0]["memory"]["weights"] > 0
    done = CliRunner().invoke(command_line({"plan"}), ["plan", *options])
    for head in ("KV cache", "weights", "AdamW", "activ.", "checkpoint", "seconds"):
        assert f" {head} " in done.output, "heads are whole at 80 columns"
    assert "│ 2-7 " in done.output
    assert "activation_checkpointing of policy is on" in done.output.replace("\n", " ")
    refused = "trainer.policy.activation_checkpointing=false"
    done = CliRunner().invoke(command_line({"plan"}), ["plan", *options, "--set", refused])
    assert isinstance(done.exception, ConfigError), "the option is given"
    missing = CliRunner().invoke(
        command_line({"plan"}), ["plan", "--model", "./none", "--gpus", "1x80GB"]
    )
    assert isinstance(missing.exception, ConfigError)
    assert "models.policy" in missing.exception.detail
