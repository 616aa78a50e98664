"""The application: every route, and what stands before them."""

from __future__ import annotations

import importlib.metadata

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from antiphon.serve import errors
from antiphon.serve.admin import admin_router
from antiphon.serve.chat import chat_router
from antiphon.serve.errors import REQUEST_ID
from antiphon.serve.limits import Limits
from antiphon.serve.metrics import metrics_router
from antiphon.serve.page import page_router
from antiphon.serve.realtime.router import realtime_router
from antiphon.serve.service import Service
from antiphon.serve.speech import speech_router
from antiphon.serve.status import status_router
from antiphon.serve.traces import trace_router
from antiphon.serve.transcriptions import transcription_router

_DESCRIPTION = "OpenAI's API for an omni pipeline: text and speech, in and out."


def create_app(service: Service) -> FastAPI:
    """The ASGI application of one pipeline, which whoever calls this starts and closes."""
    app = FastAPI(
        title="Antiphon",
        description=_DESCRIPTION,
        version=importlib.metadata.version("antiphon"),
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    errors.install(app)
    app.include_router(page_router())
    app.include_router(status_router(service))
    app.include_router(chat_router(service))
    app.include_router(speech_router(service))
    app.include_router(transcription_router(service))
    app.include_router(realtime_router(service))
    app.include_router(trace_router(service.timelines))
    app.include_router(metrics_router(service.omni, service.metrics))
    if service.settings.admin:
        app.include_router(admin_router(service))
    app.add_middleware(Limits, service=service)
    if service.settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.allow_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID],
        )
    return app
