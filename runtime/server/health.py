"""What the server says of itself: GET /health, /verdicts, /v1/models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mtrun.runtime.acceptance.rates import DEFINITIONS, rates
from mtrun.runtime.errors import MtrunError
from mtrun.runtime.server.api import EngineApi
from mtrun.runtime.server.exchange import check_model
from mtrun.runtime.worker import Snapshot

router = APIRouter()


@router.get("/health")
def health(request: Request) -> Response:
    """200 when a request would be served, else 503 with the reason; the same object either way."""
    bound = request.scope.get("server") or (None, None)
    report = health_report(request.app.state.engine, bound[1])
    return JSONResponse(report, 200 if report["status"] == "ok" else 503)


@router.get("/verdicts")
def verdicts(request: Request) -> Response:
    """The audit: every lane with its verdict."""
    return JSONResponse(request.app.state.engine.audit())


@router.get("/v1/models")
def models(request: Request) -> Response:
    """GET /v1/models."""
    return JSONResponse({"object": "list", "data": [_model(request.app.state.engine)]})


@router.get("/v1/models/{model_id:path}")
def model(request: Request, model_id: str) -> Response:
    """GET /v1/models/{id}."""
    engine: EngineApi = request.app.state.engine
    check_model(engine, model_id)
    return JSONResponse(_model(engine))


def health_report(engine: EngineApi, bound_port: int | None = None) -> dict[str, Any]:
    """The object of GET /health. Times in seconds, counts since the start, rates null without a denominator.

    `bound_port` is the real port where the configured one is 0.
    """
    now = engine.worker.snapshot()
    return {
        "status": "ok" if now.state == "ready" else now.state,
        "reason": now.reason or None,
        "model": engine.model_id,
        "acceptance": _section(engine.law) | {"engaged_requests": now.engaged, "not_engaged": now.stood_aside},
        "rates": rates(now.totals),
        "definitions": dict(DEFINITIONS),
        "counts": asdict(now.totals),
        "sampler": _section(engine.sampler_in_force),
        "lanes": _section(engine.audit),
        "notes": now.notes,
        "queue": {"limit": now.queue_limit, "queued": now.queued, "in_flight": now.in_flight},
        "requests": _requests(now),
        "last_line": now.last_line or None,
        "context_limit": engine.context_limit,
        "draft_depth": engine.draft_depth,
        "memory": _section(engine.memory),
        "server": _server(engine, bound_port),
    }


def _section(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A part of the report; while the engine loads or after it died some parts have nothing to say, and say why."""
    try:
        return dict(read())
    except MtrunError as error:
        return {"unavailable": str(error)}


def _requests(now: Snapshot) -> dict[str, int]:
    return {
        "completed": now.completed,
        "failed": now.failed,
        "refused": now.refused,
        "cancelled": now.cancelled,
    }


def _server(engine: EngineApi, bound_port: int | None) -> dict[str, Any]:
    settings = engine.server
    return {
        "host": settings.host,
        "port": bound_port or settings.port,
        "key_required": bool(settings.api_key),
        "allowed_origins": list(settings.allowed_origins),
        "keep_alive_seconds": settings.keep_alive_seconds,
    }


def _model(engine: EngineApi) -> dict[str, Any]:
    return {"id": engine.model_id, "object": "model", "created": engine.created, "owned_by": "mtrun"}
