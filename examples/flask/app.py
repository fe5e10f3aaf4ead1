"""A greeting by Flask."""

from flask import Flask

app = Flask(__name__)


@app.get("/")
def home():
    return "Hello!\n"


@app.get("/greet/<name>")
def greet(name):
    return f"Hello, {name}!\n"
