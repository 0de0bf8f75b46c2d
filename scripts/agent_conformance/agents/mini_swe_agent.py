"""mini-swe-agent with its own configuration, over litellm; its tool is a shell."""

import os
from pathlib import Path

os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}

import minisweagent
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load((Path(minisweagent.__file__).parent / "config/mini.yaml").read_text())
known = {"system_template", "instance_template"}
agent = DefaultAgent(
    LitellmModel(model_name="openai/policy"),
    LocalEnvironment(),
    **{name: text for name, text in config["agent"].items() if name in known},
)
print(agent.run("What is in the fridge?")["submission"])
