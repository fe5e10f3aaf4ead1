"""A FastAPI app: ``uvicorn fastapi_app:app``."""

from fastapi import FastAPI

app = FastAPI()


@app.get("/")
def answer() -> dict[str, str]:
    """Greet."""
    return {"hello": "world"}
