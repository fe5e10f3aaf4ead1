"""JSON and an event stream by FastAPI."""

import asyncio

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()


@app.get("/items/{number}")
async def item(number: int):
    return {"item": number}


@app.get("/count")
async def count():
    async def events():
        for number in (1, 2, 3):
            yield f"data: {number}\n\n"
            await asyncio.sleep(0.1)

    return StreamingResponse(events(), media_type="text/event-stream")
