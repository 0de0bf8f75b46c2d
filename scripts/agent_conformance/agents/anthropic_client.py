"""Anthropic's own client, streaming, with a tool."""

import anthropic

client = anthropic.Anthropic()
tools = [{"name": "look", "description": "Look inside.", "input_schema": {"type": "object"}}]
messages = [{"role": "user", "content": "What is in the fridge?"}]
while True:
    with client.messages.stream(
        model="policy", max_tokens=200, system="Help.", messages=messages, tools=tools
    ) as stream:
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    if answer.stop_reason != "tool_use":
        print(answer.content[0].text)
        break
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "a cup"}
        for block in answer.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": results})
