"""`/v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter

from antiphon.serve.service import Service


def chat_router(service: Service) -> APIRouter:
    """The route."""
    return APIRouter(tags=["chat"])
