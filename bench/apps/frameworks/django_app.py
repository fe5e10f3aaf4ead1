"""A Django app of one file: ``uvicorn django_app:app``."""

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="of a bench", DEBUG=False)  # noqa: S106 - of no use anywhere
django.setup()

app = get_asgi_application()


def respond(_: HttpRequest) -> JsonResponse:
    """Greet."""
    return JsonResponse({"hello": "world"})


urlpatterns = [path("", respond)]
