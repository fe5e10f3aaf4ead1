"""JSON and an event stream by FastAPI."""

import asyncio

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()


@app.get("/items/{number}")
async def item(number: int):
    """Return an item as JSON."""
    return {"item": number}


@app.get("/count")
async def count():
    """Stream three numbers as server-sent events."""

    async def events():
        """Yield one event each 100 ms."""
        for number in (1, 2, 3):
            yield f"data: {number}\n\n"
            await asyncio.sleep(0.1)

    return StreamingResponse(events(), media_type="text/event-stream")
