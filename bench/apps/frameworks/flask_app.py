"""A Flask app: ``waitress-serve flask_app:app``."""

from flask import Flask

app = Flask(__name__)


@app.get("/")
def respond() -> dict[str, str]:
    """Greet."""
    return {"hello": "world"}
