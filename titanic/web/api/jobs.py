"""Jobs that retry or close many requests."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from titanic.errors import InvalidRequest
from titanic.protocol.documents import RedriveInfo
from titanic.web.api.openapi import BulkJob, BulkJobList, ChangeJob, StartJob, answer, endpoint, wrong
from titanic.web.api.resource import ApiRoute, json_response, path_uuid, read_document, with_times
from titanic.web.app_state import visitor_of
from titanic.web.problems import HTTPProblem

MAX_DOCUMENT = 64 << 10
"""Bytes of the start or the change of a job: 1,000 UUIDs."""


async def post_job(request: Request) -> Response:
    """Start a job."""
    example = '{"action": "retry", "where": {"service": "mail"}}'
    given = await read_document(request, StartJob, MAX_DOCUMENT, example)
    uuids = None if given.uuids is UNSET else given.uuids
    where = {} if given.where is UNSET else asdict(given.where)
    job = await visitor_of(request).client.redrive(given.action, uuids=uuids, rate=given.rate, **where)
    return _response(job, 202)


async def get_jobs(request: Request) -> Response:
    """List jobs."""
    return _response({"jobs": await visitor_of(request).client.redrives()})


async def get_job(request: Request) -> Response:
    """Get a job."""
    return _response(await find_job(request))


async def patch_job(request: Request) -> Response:
    """Confirm, pause, resume or cancel a job."""
    given = await read_document(request, ChangeJob, MAX_DOCUMENT, '{"change": "confirm", "count": 3}')
    job = await find_job(request)
    try:
        job = await visitor_of(request).client.change_redrive(job["id"], given.change, given.count)
    except InvalidRequest as error:
        raise HTTPProblem(409, str(error)) from None
    return _response(job)


async def find_job(request: Request) -> RedriveInfo:
    """Return the job in the path. Raises HTTPProblem."""
    try:
        (job,) = await visitor_of(request).client.redrives(path_uuid(request.path_params["job"]))
    except InvalidRequest as error:
        raise HTTPProblem(404, str(error)) from None
    return job


def _response(document: Any, status: int = 200) -> Response:
    return json_response(with_times(document, "started_at", "ended_at"), status)


_JOB = {"200": answer("The job.", BulkJob), **wrong(404)}

ROUTES = [
    ApiRoute(
        "/v1/jobs",
        GET=endpoint(get_jobs, "jobs", "List jobs", {"200": answer("All of them.", BulkJobList), **wrong()}),
        POST=endpoint(
            post_job,
            "startJob",
            "Retry or close many requests",
            {"202": answer("The job.", BulkJob), **wrong(413)},
            description="With `where` it counts the requests, and waits until it is confirmed with their number.",
            body=StartJob,
        ),
    ),
    ApiRoute(
        "/v1/jobs/{job}",
        GET=endpoint(get_job, "job", "Get a job", _JOB),
        PATCH=endpoint(
            patch_job,
            "changeJob",
            "Confirm, pause, resume or cancel a job",
            {**_JOB, **wrong(404, 409, 413)},
            body=ChangeJob,
        ),
    ),
]
