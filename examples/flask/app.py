"""A greeting by Flask."""

from flask import Flask

app = Flask(__name__)


@app.get("/")
def home():
    """Greet everybody."""
    return "Hello!\n"


@app.get("/greet/<name>")
def greet(name):
    """Greet ``name``."""
    return f"Hello, {name}!\n"
