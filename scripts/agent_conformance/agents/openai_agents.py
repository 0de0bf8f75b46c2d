"""OpenAI's Agents SDK, which asks for responses."""

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)


@function_tool
def look(at: str) -> str:
    """Look inside."""
    return "a cup"


agent = Agent(name="helper", instructions="Help.", model="policy", tools=[look])
print(Runner.run_sync(agent, "What is in the fridge?").final_output)
