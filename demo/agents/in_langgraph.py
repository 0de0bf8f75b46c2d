"""The same agent in LangGraph. Its start takes seconds, so a copy stays: sessions come as lines (`triforge agent run --keep`)."""

import json
import os
import sys
from pathlib import Path

import httpx
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

world = httpx.Client(base_url=os.environ["WORLD_URL"])


class Game(MessagesState):
    """Messages so far, and the state of the game."""

    model: ChatOpenAI
    seen: dict


def think(state: Game) -> dict:
    """Ask the model."""
    return {"messages": [state["model"].invoke(state["messages"])]}


def act(state: Game) -> dict:
    """Play the last message in the world."""
    message = {"text": state["messages"][-1].content}
    seen = world.post(f"/games/{state['seen']['id']}", json=message).json()
    return {"messages": [("user", seen["text"])], "seen": seen}


graph = StateGraph(Game).add_node(think).add_node(act)
graph.add_edge(START, "think").add_edge("think", "act")
graph.add_conditional_edges("act", lambda state: END if state["seen"]["done"] else "think")
agent = graph.compile()

for line in sys.stdin:
    given = json.loads(line)
    task = json.loads(Path(given["TRIFORGE_TASK"]).read_text())
    seen = world.post("/games", json=task).json()
    model = ChatOpenAI(
        model="policy", base_url=given["OPENAI_BASE_URL"], api_key=given["OPENAI_API_KEY"]
    )
    begun = {"messages": [("user", seen["text"])], "model": model, "seen": seen}
    ended = agent.invoke(begun, {"recursion_limit": 100})
    print(json.dumps({"success": ended["seen"]["success"]}), flush=True)
