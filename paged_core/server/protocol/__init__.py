"""What comes in and goes out: pydantic models with OpenAI's names, and vLLM's for what goes beyond."""
