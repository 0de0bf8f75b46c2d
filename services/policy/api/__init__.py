"""The dialects: OpenAI chat, responses and completions, Anthropic messages, sessions."""
