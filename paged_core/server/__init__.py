"""An OpenAI-compatible server. Light to import: FastAPI and uvicorn come in with `app` and `lifecycle` only."""
