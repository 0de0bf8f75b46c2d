"""A graph of LangGraph, its model from LangChain, over chat completions."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def look(at: str) -> str:
    """Look inside."""
    return "a cup"


model = ChatOpenAI(model="policy").bind_tools([look])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([look]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
asked = {"messages": [("system", "Help."), ("user", "What is in the fridge?")]}
print(graph.compile().invoke(asked)["messages"][-1].content)
