"""A FastAPI app whose endpoints submit and wait through one `titanic.aio.Client`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from titanic import UnknownRequest
from titanic.aio import Client


def shop(endpoint: str) -> FastAPI:
    """Prices are made by a worker of the service `price`."""
    titanic = Client(endpoint, timeout=30)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with titanic:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{number}", status_code=202)
    async def order(number: int) -> str:
        return await titanic.submit("price", str(number), key=f"order {number}")

    @app.get("/replies/{uuid}")
    async def fetch(uuid: str) -> str:
        """Each is there once."""
        try:
            (price,) = await titanic.wait(uuid, timeout=60)
        except UnknownRequest:
            raise HTTPException(410) from None
        await titanic.close(uuid)
        return price.decode()

    @app.post("/prices/{number}")
    async def price(number: int) -> str:
        return await fetch(await order(number))

    return app
