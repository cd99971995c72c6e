"""The server of the pages: routes, checks of every request, and server-sent events. Starlette on uvicorn."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl

from opsctl.app import App
from opsctl.base.errors import NotAllowed, OpsctlError
from opsctl.base.extras import required
from opsctl.dash.collect_site import SiteView
from opsctl.dash.connections import IN_SESSION
from opsctl.dash.log_search import LogExcerpt, find_first_error, read_attempt_end, read_log_tail, search_log
from opsctl.dash.page_access import COOKIE_DAYS, PageAccess, Role
from opsctl.dash.pages import (
    PageContext,
    content_policy,
    render_log,
    render_login,
    render_overview,
    render_train,
    render_wall,
)
from opsctl.dash.refresher import Refresher
from opsctl.dash.steering import MAX_INSTRUCTION_BYTES, carry_out, parse_instruction
from opsctl.state.run_dir import RunDir

with required("dash"):
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_TOKEN_BYTES = 200
BODY_WITHIN_S = 5.0
MAX_STREAMS = 200
"""Browsers that get live updates at the same time."""
POLL_S = 1.0
"""How often a stream of events looks for a new version, in memory."""
QUIET_S = 20.0
"""A stream without news sends a line this often, so that proxies do not close the connection."""
COMPRESSED = (Middleware(GZipMiddleware, compresslevel=4),)
"""Pages are compressed, the stream of events is not. A phone loads the page at every refresh: 700 kB for 200 trains."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(slots=True)
class PageServer:
    """The pages of one site for any number of viewers, who share one view and one rendering of each page."""

    app: App
    access: PageAccess
    refresher: Refresher
    prefix: str = ""
    streams: int = 0
    _pages: dict[tuple[str, ...], tuple[int, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def build(self) -> ASGIApp:
        routes = [
            Route("/", self.show_overview, middleware=COMPRESSED),
            Route("/train/{train}", self.show_train, middleware=COMPRESSED),
            Route("/train/{train}/log", self.show_log, middleware=COMPRESSED),
            Route("/events", self.stream_events),
            Route("/session", self.open_session, methods=["POST"]),
            Route("/session", self.show_session),
            Route("/act", self.act, methods=["POST"]),
        ]
        return CheckedRequests(Starlette(routes=routes), self.access, self.prefix)

    # --- pages

    def show_overview(self, request: Request) -> Response:
        """Return the page of all trains, or the wall."""
        is_wall = "wall" in request.query_params
        return self._page(request, ("wall" if is_wall else "trains",), render_wall if is_wall else render_overview)

    def show_train(self, request: Request) -> Response:
        name = request.path_params["train"]

        def render(view: SiteView, context: PageContext) -> str:
            card = view.find(name)
            return render_train(view, card, self.refresher.detail(name), context) if card else ""

        return self._page(request, ("train", name), render)

    def _page(self, request: Request, key: tuple[str, ...], render: Callable[[SiteView, PageContext], str]) -> Response:
        """Return a page, rendered once for each version and role; nothing is rendered for an unknown train."""
        role = self._role(request)
        if role is None:
            return self._ask_for_token()
        if self.refresher.current() is None:
            return self._say_unready()
        with self._lock:
            version, text = self._pages.get((*key, role), (-1, ""))
            if version != self.refresher.version:
                version = self.refresher.version  # read before the view, which may be newer but never older
                assert self.refresher.view is not None
                text = render(self.refresher.view, self._context(role, version))
                if not text:
                    return PlainTextResponse("no such train", HTTPStatus.NOT_FOUND)
                self._pages[*key, role] = (version, text)
            if key[0] == "train":
                self.refresher.detail(key[1])  # a page from memory is a wish for news as well
        return HTMLResponse(text, headers={"Content-Security-Policy": content_policy(is_static=False)})

    def show_log(self, request: Request) -> Response:
        """Return the end of a log, the lines with a text, or those about the first error, as a fragment."""
        if self._role(request) is None:
            return PlainTextResponse("no session", HTTPStatus.UNAUTHORIZED)
        view = self.refresher.current()
        name = request.path_params["train"]
        if view is None or view.find(name) is None:
            return PlainTextResponse("no such train", HTTPStatus.NOT_FOUND)
        try:
            return HTMLResponse(render_log(self._read_log(RunDir(self.app.root / name), request)))
        except OpsctlError as error:
            return PlainTextResponse(error.message, HTTPStatus.CONFLICT)

    def _read_log(self, run: RunDir, request: Request) -> LogExcerpt:
        if query := request.query_params.get("q", ""):
            return search_log(run, query)
        if attempt := request.query_params.get("attempt", ""):
            return read_attempt_end(run, self.app.journal(run), attempt)
        if "first-error" in request.query_params:
            return find_first_error(run, self.app.journal(run))
        return read_log_tail(run)

    # --- live updates

    async def stream_events(self, request: Request) -> Response:
        """Stream the version of the view and its age, at every change."""
        if self._role(request) is None:
            return PlainTextResponse("no session", HTTPStatus.UNAUTHORIZED)
        if self.streams >= MAX_STREAMS:
            return PlainTextResponse("too many viewers", HTTPStatus.SERVICE_UNAVAILABLE)
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[str]:
        self.streams += 1
        try:
            version, quiet_s = -1, 0.0
            while True:
                self.refresher.note_viewer()
                if self.refresher.version != version or quiet_s >= QUIET_S:
                    version, quiet_s, view = self.refresher.version, 0.0, self.refresher.view
                    age_s = (self.app.clock.now() - view.made).total_seconds() if view else None
                    yield f"data: {json.dumps({'version': version, 'age': age_s})}\n\n"
                await asyncio.sleep(POLL_S)
                quiet_s += POLL_S
        finally:
            self.streams -= 1

    # --- sessions and actions

    async def open_session(self, request: Request) -> Response:
        """Exchange a token for a cookie: for the page's script, or for its form in a browser without JavaScript."""
        token = (await _read_body(request, MAX_TOKEN_BYTES)).decode(errors="replace").strip()
        is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        token = dict(parse_qsl(token)).get("token", "").rpartition("token=")[2].strip() if is_form else token
        role = self.access.find_role(token)
        if role is None:
            return PlainTextResponse("this token is not valid", HTTPStatus.UNAUTHORIZED)
        is_acting = self._role(request) is Role.ACT  # a link to look takes nothing from a session that acts
        cookie = self._cookie(request) if is_acting else self.access.make_cookie(role, self.app.clock.now())
        response = JSONResponse({"role": Role.ACT if is_acting else role})
        if is_form:
            response.status_code, response.headers["Location"] = HTTPStatus.SEE_OTHER, f"{self.prefix}/"
        response.set_cookie(
            self.access.cookie_name,
            cookie,
            max_age=COOKIE_DAYS * 86400,
            path=f"{self.prefix}/",
            httponly=True,
            samesite="strict",
        )
        return response

    def show_session(self, request: Request) -> Response:
        """Return the role and, to act, the CSRF token, which only a page of this origin can read."""
        role = self._role(request)
        if role is None:
            return PlainTextResponse("no session", HTTPStatus.UNAUTHORIZED)
        csrf = self.access.csrf_token(self._cookie(request)) if role is Role.ACT else ""
        return JSONResponse({"role": role, "csrf": csrf})

    async def act(self, request: Request) -> Response:
        """Carry out an action, or return its plan."""
        if self._role(request) is not Role.ACT:
            return _refuse("this session is read-only: open the link for actions, which opsctl dash --actions prints")
        if not self.access.is_csrf_token(request.headers.get("x-csrf-token", ""), self._cookie(request)):
            return _refuse("the request does not come from this page: load the page again")
        body = await _read_body(request, MAX_INSTRUCTION_BYTES)
        try:
            instruction = parse_instruction(body)
            result = await run_in_threadpool(carry_out, self.app, instruction)
        except NotAllowed as error:
            return JSONResponse({"error": error.message, "hint": error.hint or ""}, HTTPStatus.FORBIDDEN)
        except (OpsctlError, OSError) as error:
            hint = error.hint or "" if isinstance(error, OpsctlError) else ""
            return JSONResponse({"error": str(error), "hint": hint}, HTTPStatus.CONFLICT)
        self.refresher.hurry()
        return JSONResponse(result)

    def _cookie(self, request: Request) -> str:
        return request.cookies.get(self.access.cookie_name, "")

    def _role(self, request: Request) -> Role | None:
        role = self.access.read_cookie(self._cookie(request), self.app.clock.now())
        request.scope[IN_SESSION][:] = [role] if role else []
        return role

    def _context(self, role: Role, version: int) -> PageContext:
        return PageContext(
            base=self.prefix,
            role=role,
            version=version,
            every_s=self.refresher.every_s,
            problem=self.refresher.problem,
        )

    def _ask_for_token(self) -> Response:
        text = render_login(PageContext(base=self.prefix), "This page needs a token.")
        return HTMLResponse(text, HTTPStatus.UNAUTHORIZED, {"Content-Security-Policy": content_policy(is_static=False)})

    def _say_unready(self) -> Response:
        return PlainTextResponse(
            f"the first view is not ready: {self.refresher.problem or 'opsctl reads Slurm and the files'}",
            HTTPStatus.SERVICE_UNAVAILABLE,
            {"Retry-After": "5", "Refresh": "5"},
        )


def _refuse(text: str) -> Response:
    return JSONResponse({"error": text, "hint": ""}, HTTPStatus.FORBIDDEN)


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Return at most `max_bytes` of the body, cut off; what has come in time."""
    body = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BODY_WITHIN_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    break
    return body[:max_bytes]


@dataclass(frozen=True, slots=True)
class CheckedRequests:
    """Checks Host and Origin of every request before the routes, removes the prefix, and adds headers to responses."""

    inner: ASGIApp
    access: PageAccess
    prefix: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if why := self._find_problem(scope):
            await PlainTextResponse(why, HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, _with_headers(send))
            return
        path = scope["path"]
        if self.prefix and (path == self.prefix or path.startswith(f"{self.prefix}/")):
            path = path[len(self.prefix) :] or "/"
        scope[IN_SESSION] = []  # filled by the routes, read by the connection
        await self.inner({**scope, "path": path, "raw_path": path.encode()}, receive, _with_headers(send))

    def _find_problem(self, scope: Scope) -> str:
        """Return why a request is refused; empty for one of this server's pages."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        if len(headers.get("host", [])) != 1 or not self.access.is_host(headers["host"][0]):
            return "unknown Host: opsctl dash --server-name NAME adds the name under which the page is reached"
        if not all(map(self.access.is_origin, headers.get("origin", []))):
            return "the request comes from a page of another site"
        if scope["method"] == "POST" and not set(headers.get("sec-fetch-site", [])) <= {"same-origin", "none"}:
            return "the request comes from a page of another site"
        return ""


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            assert isinstance(headers, list)
            known = {name.lower() for name, _ in headers}
            added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*headers, *(pair for pair in added if pair[0] not in known)]}
        await send(message)

    return send_with_headers
