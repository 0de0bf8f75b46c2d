"""Pydantic AI, over chat completions."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("policy"), instructions="Help.")


@agent.tool_plain
def look(at: str) -> str:
    """Look inside."""
    return "a cup"


print(agent.run_sync("What is in the fridge?").output)
