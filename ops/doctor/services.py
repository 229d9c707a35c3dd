"""Checks of the model's key and of Flower's port."""

import http.client
from collections.abc import Iterator

from celeriac.common.settings import FlowerSettings, LlmSettings
from celeriac.coordinator.servers import shown
from celeriac.ops.doctor.check import Check, ok, warn
from celeriac.ops.ports import ADDRESS, PortTaken, must_be_free

HTTP_SECONDS = 2.0


def model(llm: LlmSettings) -> Iterator[Check]:
    """Whether a model can be asked. The key itself is shown nowhere, and nothing is sent."""
    if llm.base_url is not None:
        kind = "a stand-in" if llm.standin else "a server of your own"
        key = "with" if llm.api_key is not None else "without"
        yield ok("model", f"{llm.model} at {kind}, {key} a key: {shown(llm.base_url)}")
    elif llm.api_key is not None:
        yield ok("model", f"{llm.model}, the key is set (it is not tried)")
    else:
        remedy = "set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for a server of your own; --replay needs neither"
        yield warn("model", "no key", remedy)


def flower_port(flower: FlowerSettings) -> Iterator[Check]:
    """The console's port is free, or a console is there."""
    if flower.port == 0:
        yield ok("flower port", "any that is free")
        return
    try:
        must_be_free(flower.port, "")
    except PortTaken:
        if answers_as_flower(flower.port):
            yield ok("flower port", f"a console answers at http://{ADDRESS}:{flower.port}")
        else:
            yield warn("flower port", f"{flower.port} is taken by another program", "set CELERIAC_FLOWER_PORT")
    else:
        yield ok("flower port", f"{flower.port} is free")


def answers_as_flower(port: int) -> bool:
    """Whether what listens there is a Flower: its health check needs no password."""
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", "/healthcheck")
        answer = connection.getresponse()
        return answer.status == http.HTTPStatus.OK and answer.read(16) == b"OK"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
