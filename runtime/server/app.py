"""The FastAPI application over one engine, free of sockets and signals (those are in `serve`)."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from mtrun.runtime.errors import MtrunError
from mtrun.runtime.server import chat, completions, health
from mtrun.runtime.server.api import EngineApi
from mtrun.runtime.server.errors import ProblemError, on_http_exception, on_problem
from mtrun.runtime.server.metrics import registry_of
from mtrun.runtime.server.security import Guard, KeyCheck

__all__ = ["EngineApi", "create_app"]


def create_app(engine: EngineApi) -> FastAPI:
    """The routes over `engine`, which the caller loads and stops."""
    # The documentation pages of FastAPI fetch scripts from the network: this server opens no page that does.
    app = FastAPI(title="mtrun", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.engine = engine
    for router in (chat.router, completions.router, health.router):
        app.include_router(router)
    _add_metrics(app, engine)
    app.add_exception_handler(ProblemError, on_problem)
    app.add_exception_handler(MtrunError, on_problem)
    app.add_exception_handler(HTTPException, on_http_exception)
    _add_middleware(app, engine)
    return app


def _add_metrics(app: FastAPI, engine: EngineApi) -> None:
    registry = registry_of(engine)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _add_middleware(app: FastAPI, engine: EngineApi) -> None:
    """The last one added is the outermost: Guard, then CORS where origins are listed, then the key."""
    settings = engine.server
    if settings.api_key:
        app.add_middleware(KeyCheck, api_key=settings.api_key)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.rstrip("/") for origin in settings.allowed_origins],
            allow_credentials=False,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
            expose_headers=["x-mtrun-acceptance", "x-request-id", "retry-after"],
        )
    app.add_middleware(Guard, settings=settings)
