"""Backends that drive models behind an API: OpenAI's and what is compatible with it, SGLang, vLLM, Anthropic, LiteLLM."""
