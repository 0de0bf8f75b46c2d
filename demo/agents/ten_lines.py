"""An agent: what it sees goes to its model, what the model says goes to its world. It knows nothing of triforge."""

import json
import os
from pathlib import Path

import httpx

key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
model = httpx.Client(base_url=os.environ["OPENAI_BASE_URL"], headers=key, timeout=120)
world = httpx.Client(base_url=os.environ["WORLD_URL"])
task = json.loads(Path(os.environ["TRIFORGE_TASK"]).read_text())
seen, messages = world.post("/games", json=task).json(), []
while not seen["done"]:
    messages.append({"role": "user", "content": seen["text"]})
    answer = model.post("/chat/completions", json={"model": "policy", "messages": messages}).json()
    messages.append(answer["choices"][0]["message"])
    seen = world.post(f"/games/{seen['id']}", json={"text": messages[-1]["content"]}).json()
raise SystemExit(not seen["success"])
