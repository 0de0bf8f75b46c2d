"""Steps of verl's trainer V1 without its engines and its learner: real workers play the agent loop of docs/sidecar.md, in the interpreter of verl.

The policy is sampled by transformers; rewards come out of the queue from which the trainer reads, and GRPO's advantage is verl's.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

STEPS, PROMPTS, N = 12, 2, 8
_MODEL: Final = os.environ["MODEL"]
_ROWS: Final = "places.parquet"
_ANSWER: Final = 16  # tokens
_LIMIT_S: Final = 600.0


class Sampler:
    """verl's `LLMServerClient` in one process."""

    def __init__(self) -> None:
        self._model: Any = None

    async def generate(self, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(_MODEL)
        ids = torch.tensor([prompt_ids])
        out = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=_ANSWER,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        new = out.sequences[0, len(prompt_ids) :]
        logprobs = torch.cat(out.logits).log_softmax(-1).gather(1, new[:, None])[:, 0]
        return TokenOutput(token_ids=new.tolist(), log_probs=logprobs.tolist())


def places(config: Any) -> RLHFDataset:
    """Return the rows that the trainer reads."""
    prompt = [{"role": "user", "content": "any"}]
    pd.DataFrame({"prompt": [prompt] * PROMPTS, "data_source": "kitchen"}).to_parquet(_ROWS)
    tokenizer = AutoTokenizer.from_pretrained(_MODEL)
    return RLHFDataset(data_files=_ROWS, tokenizer=tokenizer, config=config.data)


def step(manager: Any, number: int, rows: RLHFDataset) -> None:
    """Have a batch of prompts played, and read its groups as the trainer does."""
    uids = [str(uuid.uuid4()) for _ in rows]
    read = collate_fn([*rows]) | {"uid": np.array(uids, dtype=object)}
    batch = tu.get_tensordict(read, {"global_steps": number})
    manager.generate_sequences(batch)
    until = time.monotonic() + _LIMIT_S
    while not all(_status(uid) == "finished" for uid in uids):
        assert time.monotonic() < until, [_status(uid) for uid in uids]
        assert "failure" not in [_status(uid) for uid in uids]
        time.sleep(0.5)
    for uid in uids:
        keys = [f"{uid}_{session}_0" for session in range(N)]
        found = tq.kv_batch_get(keys=keys, partition_id="train")
        rewards = torch.nested.to_padded_tensor(found["rm_scores"], 0.0)
        mask = torch.nested.to_padded_tensor(found["response_mask"], 0)
        assert found["rollout_log_probs"][0].shape == found["response_mask"][0].shape
        advantages, _ = compute_grpo_outcome_advantage(rewards, mask, [uid] * N)
        each = [round(one, 3) for one in (advantages.sum(1) / mask.sum(1)).tolist()]
        print(f"step {number}: {each}", flush=True)  # noqa: T201


def _status(uid: str) -> str:
    return str(tq.kv_list(partition_id="train")["train"].get(uid, {}).get("status"))


def main() -> None:
    loops = Path("loops.yaml").resolve()
    loops.write_text("- {name: kitchen, _target_: in_verl.Kitchen}\n")
    rollout = "actor_rollout_ref.rollout"
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={_MODEL}", f"{rollout}.name=vllm", f"{rollout}.n={N}",
                f"{rollout}.agent.num_workers=2", f"{rollout}.agent.default_agent_loop=kitchen",
                f"{rollout}.agent.agent_loop_config_path={loops}", f"{rollout}.multi_turn.max_assistant_turns=14",
                f"{rollout}.calculate_log_probs=true", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            ],
        )  # fmt: skip
    rows = places(config)
    ray.init(num_cpus=4, include_dashboard=False)
    tq.init(config.transfer_queue)
    manager = AgentLoopManagerTQ.create(config, llm_client=Sampler())
    for number in range(1, STEPS + 1):
        step(manager, number, rows)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
