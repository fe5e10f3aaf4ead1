"""A FastAPI app: ``uvicorn fastapi_app:app``."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/")
def respond() -> dict[str, str]:
    """Greet."""
    return {"hello": "world"}
