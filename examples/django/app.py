"""A Django project in one file."""

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=[".localhost"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ["SECRET_KEY"],
)


def home(request):
    """Greet the ``name`` of the query."""
    return HttpResponse(f"Hello, {request.GET.get('name', 'world')}!\n", content_type="text/plain")


urlpatterns = [path("", home)]
application = get_wsgi_application()
