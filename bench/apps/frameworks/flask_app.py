"""A Flask app: ``waitress-serve flask_app:app``."""

from flask import Flask

app = Flask(__name__)


@app.get("/")
def answer() -> dict[str, str]:
    """Greet."""
    return {"hello": "world"}
