"""The arguments of a training, and the document that they make."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from triforge.cli.checks import check_new_pool, demand_playable, demand_shown
from triforge.cli.deployment import DOCUMENT
from triforge.cli.figures import TASKS
from triforge.cli.model_folders import TINY, TINY_DOCUMENT, learning_rate, model_folder, shapes_of
from triforge.cli.pools import read_pool
from triforge.cli.started import Tell, clients_of, deployed
from triforge.config import AlgorithmSection, Settings, merge, parse, read_document
from triforge.environments.kit import Beginner
from triforge.environments.registry import family
from triforge.environments.trainable import unplayable
from triforge.errors import ConfigError, InputError
from triforge.event_loop import run_anywhere
from triforge.planning.cards import find_cards
from triforge.planning.plan import Plan, fitted, served
from triforge.supervisor.layout import demand_startable
from triforge.supervisor.supervise import ADDRESSES
from triforge.types import MAX_TASKS, Params, PoolState, Task


@dataclass(frozen=True, kw_only=True)
class Training:
    """The arguments of `train`."""

    model: str = ""
    env: str = ""
    preset: str = ""
    steps: int | None = None
    config: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    reward_model: str = ""
    rewriter_model: str = ""
    generate: Params = field(default_factory=dict)
    options: Params = field(default_factory=dict)
    tasks: int | None = None
    heldout: int | None = None
    pool: str = ""
    file: Path | None = None
    seed: int | None = None
    colocate: bool | None = None
    engine: str = ""
    gpus: int | str = ""
    name: str = ""
    again: bool = False
    resume: str = ""
    state: Path = Path("var")
    export: Path | None = None

    def document(self, tell: Tell) -> dict[str, Any]:
        """Return the document of the run: the file, over it the arguments, over both `overrides`."""
        if self.resume:
            self._demand_run()
            return read_document(self.state / DOCUMENT)
        document = self.without_models()
        parse(document)  # before a model is fetched or made
        shown = self._check_pool(document, tell)
        document = self._with_room(document, tell)
        document = merge(document, {"models": self._models(tell)})
        document = self._with_rates(document, tell)
        policy = document["models"].get("policy", {}).get("path", "")
        if shown and policy:
            demand_shown(Path(policy), *shown, parse(document).env_adapter.options)
        return document

    def without_models(self) -> dict[str, Any]:
        """Return the document without the folders of the models that are arguments."""
        base: dict[str, Any] = TINY_DOCUMENT if self.model == TINY else {}
        if not (self.pool or self.file):
            base = merge(base, {"run": {"eval_tasks": self.counts()[1]}})
        base = merge(base, read_document(self.config) if self.config else {})
        run = {"name": self.name or None, "seed": self.seed, "steps": self.steps}
        run |= {"colocate": self.colocate}
        machine = {"engine": self.engine, "gpus": str(self.gpus)}
        arguments = {
            "run": {k: v for k, v in run.items() if v is not None},
            "machine": {k: v for k, v in machine.items() if v},
            "algorithm": {"preset": self.preset} if self.preset else {},
            "env_adapter": {"options": self.options},
        }
        document = merge(merge(base, arguments), self.overrides)
        models = document.get("models", {})
        if not (self.reward_model or models.get("reward", {}).get("path")):
            document = merge({"algorithm": {"preset": "grpo"}}, document)
        rewriter = self.rewriter_model or os.environ.get("TRIFORGE_REWRITER_MODEL_URL")
        if not (rewriter or models.get("rewriter", {}).get("path")):
            document = merge({"adaptation": {"controller": "none"}}, document)
        if of := self.env or self.pool:
            preset = document.get("algorithm", {}).get("preset", AlgorithmSection().preset)
            document = merge({"run": {"name": f"{of}-{preset}"}}, document)
        return document

    def of_deployment(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document for a start: without the run's name, and the options of episodes that the new pool has, which others have not."""
        if self.resume:
            return document
        kept = {section: dict(given) for section, given in document.items()}
        kept["run"].pop("name", None)
        if not (self.pool or self.file):
            kept["env_adapter"].pop("options")
        return kept

    def counts(self) -> tuple[int, int]:
        """Return how many tasks are generated for training and evaluation; a file is taken whole, of which a fifth is held out, 128 rows at most."""
        data = str(self.generate.get("data", ""))
        if self.tasks is None and self.heldout is None and data.endswith(".jsonl"):
            with contextlib.suppress(OSError), Path(data).open("rb") as file:
                rows = sum(bool(line.strip()) for line in file)
                if rows > 1:
                    heldout = min(TASKS, max(1, rows // 5))
                    return min(rows - heldout, MAX_TASKS - heldout), heldout
        counts = (self.tasks, self.heldout)
        train, heldout = (TASKS if count is None else count for count in counts)
        return train, heldout

    def request(self, document: Mapping[str, Any]) -> tuple[str, dict[str, Any] | Path]:
        """Return the name of the new pool and its request, or a file of its tasks."""
        name = f"{re.sub('[^a-z0-9]+', '-', self.env.lower())}-{int(time.time())}"
        if self.file:
            return name, read_pool(self.file)
        count, heldout = self.counts()
        config = parse(document)
        seed, options = config.run.seed, config.env_adapter.options
        generate = {"count": count, "heldout": heldout, "options": self.generate, "seed": seed}
        if self.tasks is None and self.heldout is None:
            generate["at_most"] = True
        return name, {"options": options, "generate": generate}

    def _demand_run(self) -> None:
        begun, there = Training(), {"resume", "state", "export"}
        names = [one.name for one in fields(self) if one.name not in there]
        if given := [name for name in names if getattr(self, name) != getattr(begun, name)]:
            raise InputError(
                f"--resume: given with {', '.join(given)}, expected the run alone, which goes on as it was begun, to its own "
                "number of steps. To train its model for more steps, begin a run with the folder that `triforge run save "
                f"{self.resume} --to FOLDER` writes: --model FOLDER"
            )
        if deployed(self.state) is None:
            from triforge.cli import kept  # noqa: PLC0415  SQLAlchemy is slow to import

            kept.demand_run(self.state, self.resume)

    def _check_pool(self, document: Mapping[str, Any], tell: Tell) -> tuple[PoolState, Task] | None:
        """Return the pool and a task of it if nothing is started yet; raise for one that cannot be made or trained on as the document says."""
        addresses, shown = deployed(self.state), None
        if addresses is None:
            demand_startable(Settings.from_env(), parse(document))
        if addresses is not None and self.pool:
            options = parse(document).env_adapter.options
            run_anywhere(_check_served_pool(addresses, self.pool, options))
        elif addresses is not None and (self.state / ADDRESSES).is_file():
            pool, _ = check_new_pool(*self.request(document), self.env, play=False, tell=tell)
            base = read_document(Path(addresses.config)) if addresses.config else {}
            demand_playable(pool, document, base)
        elif addresses is None and self.pool:
            from triforge.cli import kept  # noqa: PLC0415  SQLAlchemy is slow to import

            shown = kept.find_pool(self.state, self.pool)
        elif addresses is None:
            shown = check_new_pool(*self.request(document), self.env, play=True, tell=tell)
        if shown is not None:
            demand_playable(shown[0], document, document)
        return shown

    def planned(self, document: dict[str, Any], tell: Tell) -> tuple[dict[str, Any], Plan]:
        """Return the document, with what it needs to fit the cards, and the plan; of models only `config.json` is fetched.

        Raises:
            ConfigError: it does not fit, or a model has no `config.json`.
        """
        paths = {role: {"path": name} for role, name in self._named().items() if name}
        document = merge(document, {"models": paths})
        config = parse(document)
        cards = find_cards(config.machine.gpus)
        return fitted(document, shapes_of(config, tell), cards, served(config))

    def _with_room(self, document: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Return the document as `planned`, if a start here divides cards; a tiny model fits any."""
        divides = parse(document).machine.divides and TINY not in self._named().values()
        if not divides or deployed(self.state) is not None:
            return document
        document, plan = self.planned(document, tell)
        for note in plan.notes:
            tell(f"plan: {note}")
        return document

    def for_beginners(self) -> Training:
        """Return the training of a tiny model with the family's small tasks, where none are named."""
        if self.model != TINY or self.pool or self.file or not self.env:
            return self
        beginner: Beginner | None = getattr(family(self.env), "beginner", None)
        if beginner is None:
            return self
        return replace(
            self,
            generate=self.generate or beginner.generate,
            options=self.options or beginner.options,
        )

    def _with_rates(self, document: dict[str, Any], tell: Tell) -> dict[str, Any]:
        """Return the document with learning rates by the size of the named models, where it has none."""
        for role, name in (("policy", self.model), ("reward", self.reward_model)):
            section = document.get("trainer", {}).get(role, {})
            if not name or "learning_rate" in section:
                continue
            folder = Path(document["models"][role]["path"])
            rate = learning_rate(folder, lora=bool(section.get("lora_rank")))
            if rate is None:
                continue
            tell(
                f"learning rate of the {role} by its size: {rate:g} (trainer.{role}.learning_rate)"
            )
            document = merge(document, {"trainer": {role: {"learning_rate": rate}}})
        return document

    def _models(self, tell: Tell) -> dict[str, Any]:
        folder = partial(
            model_folder, tell=tell, env=self.env, generate=self.generate, options=self.options
        )
        return {
            role: {"path": str(folder(role, name))} for role, name in self._named().items() if name
        }

    def _named(self) -> dict[str, str]:
        # the policy is last, because a tiny one takes a minute or two to make
        return {"reward": self.reward_model, "rewriter": self.rewriter_model, "policy": self.model}


async def _check_served_pool(addresses: Settings, pool: str, options: Params) -> None:
    async with clients_of(addresses) as (pools, _):
        state = await pools.pool(pool)
        try:
            await pools.check_pool(state.id, options)
        except (InputError, ConfigError) as error:
            raise unplayable(state, error) from None
