"""deploy: from a plan of replicas to replicas that answer, told to whoever waits."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from paged_core.cluster.fleet import ENGINE
from paged_core.errors import ConfigError

if TYPE_CHECKING:
    from paged_core.cluster.fleet import Fleet

news = logging.getLogger("paged_core.news")
_LOOK_S = 0.2


def deploy(fleet: Fleet, name: str) -> Any:
    """A handle on the engines, all of them running, as the application `name`. What holds them up is told on `news`.

    ConfigError with the reason in one line when they cannot start. Waits for ever for machines that a cluster may yet
    get; a signal ends the wait as it would any other.
    """
    from ray import serve

    number = f"{fleet.least}" if fleet.most == fleet.least else f"{fleet.least} to {fleet.most}"
    news.info("starting %s replicas of %s on Ray", number, fleet.name)
    target = serve.RunTarget(fleet.engines(), name=name, route_prefix=None)
    (handle,) = serve.run_many([target], wait_for_applications_running=False)
    told = ""
    while True:
        application = serve.status().applications[name]
        deployments = application.deployments
        message = (deployments[ENGINE].message if ENGINE in deployments else "") or application.message
        if application.status == "RUNNING":
            return handle
        if application.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise ConfigError(f"the replicas cannot start: {reason_in(message)}")
        if message != told:
            told = message
            news.info("waiting for replicas: %s", reason_in(message))
        time.sleep(_LOOK_S)


def reason_in(message: str) -> str:
    """The line of Ray's report on a replica that says what went wrong there: the exception, without its traceback."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    raised = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    line = (raised or lines or ["no reason is known"])[-1]
    kind, colon, rest = line.partition(": ")
    return rest if colon and "." in kind and " " not in kind else line
